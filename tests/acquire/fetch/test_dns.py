import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from curate.acquire.fetch import dns
from curate.acquire.fetch.codes import Failure
from curate.acquire.fetch.dns import Resolver


class Names:
    """A lookup that counts. Values: addresses, or what is raised."""

    def __init__(self, **hosts: Sequence[str] | Exception) -> None:
        self.hosts = hosts
        self.asked: list[str] = []

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        found = self.hosts[host]
        if isinstance(found, Exception):
            raise found
        return found


def test_an_answer_is_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(dns, "time", SimpleNamespace(monotonic=lambda: now))
    names = Names(a=["1.1.1.1", "::1"])
    resolver = Resolver(names, keep_seconds=10.0)
    assert resolver.addresses("a", 5) == resolver.addresses("a", 5) == ("1.1.1.1", "::1")
    assert names.asked == ["a"]
    names.hosts["a"] = ["2.2.2.2"]
    now += 10.0
    assert resolver.addresses("a", 5) == ("2.2.2.2",)


@pytest.mark.parametrize(
    ("failure", "seconds"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), 10.0),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), 2.0),
        (OSError("no route"), 2.0),
        (UnicodeError("label too long"), 2.0),
        ([], 10.0),
    ],
)
def test_a_failure_is_kept_too(monkeypatch: pytest.MonkeyPatch, failure: Exception, seconds: float) -> None:
    now = 100.0
    monkeypatch.setattr(dns, "time", SimpleNamespace(monotonic=lambda: now))
    names = Names(a=failure)
    resolver = Resolver(names, keep_seconds=10.0, keep_failure_seconds=2.0)
    for _ in range(2):
        with pytest.raises(Failure, match="dns: "):
            resolver.addresses("a", 5)
    assert names.asked == ["a"]
    names.hosts["a"] = ["1.1.1.1"]
    now += seconds - 0.1
    with pytest.raises(Failure):
        resolver.addresses("a", 5)
    now += 0.1
    assert resolver.addresses("a", 5) == ("1.1.1.1",)


def test_threads_share_a_lookup_and_wait_for_a_limited_time() -> None:
    silent = threading.Event()
    asked = []

    def lookup(host: str) -> list[str]:
        asked.append(host)
        silent.wait(60)
        return ["1.1.1.1"]

    resolver = Resolver(lookup)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(resolver.addresses, "a", 120) for _ in range(8)]
        with pytest.raises(Failure, match=r"dns: no answer for a within 0\.1 s"):
            resolver.addresses("a", 0.05)
        silent.set()
        assert {future.result() for future in waiting} == {("1.1.1.1",)}
    assert asked == ["a"]


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns, "MOST_HOSTS", 3)
    resolver = Resolver(lambda host: [host])
    for number in range(10):
        assert resolver.addresses(f"1.1.1.{number}", 5) == (f"1.1.1.{number}",)
    assert len(resolver._entries) == 3


def test_the_system_knows_this_machine() -> None:
    assert "127.0.0.1" in dns.system_lookup("localhost") or "::1" in dns.system_lookup("localhost")
