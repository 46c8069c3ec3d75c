"""Hosts that cannot be reached."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from curate.acquire.fetch import connect, dead
from curate.acquire.fetch.codes import Failure
from curate.acquire.fetch.dead import TRIES, Dead
from tests.acquire.fetch.scripted import Scripted, response


def test_a_dead_host_is_tried_no_more_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Dead()
    for _ in range(TRIES):
        hosts.check("a", 80)
        hosts.failed("a", 80)
    with pytest.raises(Failure, match="connect: a: 8 connections in a row failed"):
        hosts.check("a", 80)
    hosts.check("a", 443)
    monkeypatch.setattr(dead, "DEAD_SECONDS", 0.0)
    hosts.check("a", 80)
    hosts.failed("a", 80)
    monkeypatch.setattr(dead, "DEAD_SECONDS", 60.0)
    with pytest.raises(Failure):
        hosts.check("a", 80)
    hosts.reached("a", 80)
    hosts.check("a", 80)


def test_only_so_many_hosts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "MOST_HOSTS", 2)
    monkeypatch.setattr(dead, "TRIES", 1)
    hosts = Dead()
    for host in "abc":
        hosts.failed(host, 80)
    hosts.check("a", 80)
    with pytest.raises(Failure):
        hosts.check("c", 80)


def test_urls_of_a_dead_host_make_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def refused(address: str, port: int, wait: float) -> Any:
        opened.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    with Scripted(response()) as server, nullcontext(server.fetcher(retries=2, backoff_seconds=0.0)) as fetcher:
        with monkeypatch.context() as patch:
            patch.setattr(connect, "_open", refused)
            found = [fetcher.fetch(server.url(f"/{n}")) for n in range(20)]
        assert {one.code for one in found} == {"connect"} and {one.status for one in found} == {"error"}
        assert len(opened) == TRIES and sum(one.tries for one in found) < 2 * TRIES + 20
