from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

from pipelines.serve import parse
from tests.acquire.server.log import Log, Visit
from tests.acquire.server.server import FaultServer, hosts


def visit(host: str, start: float, end: float | None) -> Visit:
    return Visit(parse(f"GET / HTTP/1.1\r\nHost: {host}"), ("127.0.0.1", 1), start, end)


def test_most_at_once_and_within() -> None:
    times = [(0.0, 2.0), (1.0, 3.0), (2.0, 3.0), (2.5, 2.5), (3.0, None), (4.0, 4.0)]
    log = Log([visit("a", *time) for time in times] + [visit("b", 9.0, 9.0)])
    assert log.most_at_once() == {"a": 3, "b": 1}
    assert log.most_within(1.0) == {"a": 2, "b": 1}
    assert log.most_within(1.01) == {"a": 3, "b": 1}
    assert log.per_host() == {"a": 6, "b": 1}
    assert log.starts()["a"] == [start for start, _ in times]


def test_requests_overlap_as_far_as_the_client_lets_them() -> None:
    with FaultServer(addresses=hosts(3), delay=0.1) as server:
        urls = [server.at("/good.jpg", host) for host in hosts(3) for _ in range(5)]
        with ThreadPoolExecutor(2) as pool:
            for data in pool.map(lambda url: urlopen(url).read(), urls):
                assert data
        most = server.log.most_at_once()
    assert max(most.values()) == 2
    assert server.log.per_host() == dict.fromkeys(hosts(3), 5)
    assert len(server.log.of("/good.jpg")) == 15
