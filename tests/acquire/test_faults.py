"""Every fault of the test server, and what becomes of its URL: status, code, tries, and what the server saw."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from curate.acquire.fetch.codes import CODES
from curate.acquire.fetch.dns import Lookup, system_lookup
from curate.acquire.fetch.fetch import Fetched, Fetcher
from curate.acquire.fetch.settings import FetchSettings
from tests.acquire.server.images import JPEG
from tests.acquire.server.outcomes import CASES, GROUPS, Case, header, places
from tests.acquire.server.server import FaultServer

SECONDS = 250.0
"""All faults at once take a few seconds, and those that no limit ends a thousand."""


Make = Callable[..., Fetcher]


@dataclass(repr=False)
class Outcomes:
    fetched: dict[str, Fetched]
    """By name of the case."""
    requests: Counter[str]
    """By name of the case: requests at its address."""
    seconds: float


@pytest.fixture(scope="module")
def fetcher(fault_server: FaultServer) -> Make:
    """Makes a fetcher from the name of a group and what differs."""

    def make(group: str = "patient", lookup: Lookup = system_lookup, **settings: object) -> Fetcher:
        values = GROUPS[group] | {"allow_ports": fault_server.ports} | settings
        return Fetcher(FetchSettings.of(values), lookup=lookup)

    return make


@pytest.fixture(scope="module")
def outcomes(fault_server: FaultServer, fetcher: Make) -> Outcomes:
    """What becomes of every case, all at once."""
    shared = {group: fetcher(group) for group in GROUPS}
    addresses = places()

    def fetch(case: Case) -> Fetched:
        by = fetcher(case.group, **case.settings) if case.settings else shared[case.group]
        return by.fetch(case.url(fault_server, addresses[case.name]), sha256=case.sha256, md5=case.md5)

    start = time.monotonic()
    with ThreadPoolExecutor(len(CASES)) as pool:
        fetched = dict(zip([case.name for case in CASES], pool.map(fetch, CASES), strict=True))
    asked = fault_server.log.per_host()
    return Outcomes(fetched, Counter({name: asked[host] for name, host in addresses.items()}), time.monotonic() - start)


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fault(case: Case, outcomes: Outcomes) -> None:
    found = outcomes.fetched[case.name]
    assert (found.code, found.tries) == (case.code, case.tries), found.detail
    assert found.status == CODES[case.code][0]
    assert outcomes.requests[case.name] == (case.tries if case.requests is None else case.requests)
    if case.code == "done":
        assert found.data == case.data
    else:
        assert not found.data
        assert "\n" not in found.detail and len(found.detail) < 500


def test_what_follows_a_response_is_not_the_next_one(fault_server: FaultServer, fetcher: Make) -> None:
    """/short-length sends a second response that was not requested."""
    by = fetcher()
    for _ in range(3):
        assert by.fetch(fault_server.at("/short-length")).data == JPEG
        assert by.fetch(fault_server.at("/good.jpg")).data == JPEG


class Names:
    """A name server that knows one host: it gives each of its answers in turn, and the last one indefinitely."""

    def __init__(self, host: str, *answers: list[str]) -> None:
        self.host = host
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, host: str) -> list[str]:
        if host != self.host:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


CLOSING = header("Connection: close")
"""Path of an image after which the connection cannot be used again."""


def test_a_name_that_leads_elsewhere_after_the_check(fault_server: FaultServer, fetcher: Make) -> None:
    """127.0.0.1 is allowed and stands for a public address; 127.0.0.2 is not, and stands for a private one."""
    host = "rebinding.example.com"
    lookup = Names(host, ["127.0.0.1"], ["127.0.0.2"])
    by = fetcher(lookup=lookup, allow_networks=("127.0.0.1/32",), dns_seconds=0.0)
    url = f"http://{host}:{fault_server.port}{CLOSING}"
    assert [by.fetch(url).code for _ in range(3)] == ["done", "private_address", "private_address"]
    assert lookup.asked == 3
    assert fault_server.log.per_host()[host] == 1


def test_a_redirect_to_a_name_that_leads_elsewhere(fault_server: FaultServer, fetcher: Make) -> None:
    host = "redirected.example.com"
    by = fetcher(lookup=Names(host, ["127.0.0.2"]), allow_networks=("127.0.0.1/32",))
    to = f"http://{host}:{fault_server.port}/good.jpg"
    found = by.fetch(fault_server.at(f"/redirect?to={to}", "127.0.0.1"))
    assert (found.code, found.host) == ("private_address", host)
    assert fault_server.log.per_host()[host] == 0


def test_a_name_with_public_and_private_addresses(fault_server: FaultServer, fetcher: Make) -> None:
    """Only the public ones are connected to."""
    host = "mixed.example.com"
    by = fetcher(lookup=Names(host, ["10.0.0.1", "127.0.0.2", "127.0.0.1"]), allow_networks=("127.0.0.1/32",))
    assert by.fetch(f"http://{host}:{fault_server.port}/good.jpg").code == "done"


def test_an_answer_is_kept(fault_server: FaultServer, fetcher: Make) -> None:
    lookup = Names("kept.example.com", ["127.0.0.1"])
    by = fetcher(lookup=lookup)
    url = f"http://kept.example.com:{fault_server.port}{CLOSING}"
    assert [by.fetch(url).code for _ in range(3)] == ["done"] * 3
    assert lookup.asked == 1


def test_a_name_that_does_not_exist(fetcher: Make) -> None:
    found = fetcher(lookup=Names("another.example.com", ["127.0.0.1"])).fetch("http://nowhere.example.com/a.jpg")
    assert (found.status, found.code, found.tries) == ("error", "dns", 1)


def test_a_name_server_that_does_not_answer(fetcher: Make) -> None:
    release = threading.Event()

    def lookup(host: str) -> list[str]:
        release.wait(60)
        return ["127.0.0.1"]

    found = fetcher(lookup=lookup, timeout=0.1).fetch("http://slow.example.com/a.jpg")
    release.set()
    assert (found.status, found.code) == ("error", "dns")


def test_certificates_are_for_names(fault_server: FaultServer, fetcher: Make) -> None:
    port = fault_server.tls_ports["good"]
    for host, code in {"images.example.com": "done", "images.example.org": "tls"}.items():
        by = fetcher(lookup=Names(host, ["127.0.0.1"]))
        assert by.fetch(f"https://{host}:{port}/good.jpg").code == code
    assert fault_server.log.per_host()["images.example.com"] == 1


def test_a_unicode_host(fault_server: FaultServer, fetcher: Make) -> None:
    by = fetcher(lookup=Names("xn--bcher-kva.example.com", ["127.0.0.1"]))
    assert by.fetch(f"http://bücher.example.com:{fault_server.port}/good.jpg").code == "done"
    assert fault_server.log.per_host()["xn--bcher-kva.example.com"] == 1


def test_a_proxy_decides(fault_server: FaultServer, fetcher: Make) -> None:
    """The server serves as the proxy: it gets the whole URL, and no address is checked here."""
    by = fetcher("strict", proxy=fault_server.origin())
    assert by.fetch("http://10.0.0.1/good.jpg?by=proxy").data == JPEG
    assert [visit.host for visit in fault_server.log.of("http://10.0.0.1/good.jpg?by=proxy")] == ["10.0.0.1"]
    assert by.fetch("http://10.0.0.1/redirect-file").code == "scheme"


def test_all_faults_end_in_time(outcomes: Outcomes) -> None:
    assert outcomes.seconds < SECONDS
