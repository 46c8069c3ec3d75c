"""Two replicas on PostgreSQL: their leader is killed, or paused and continued."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.servers.postgres import Postgres
from tests.service.faults.heads import Head
from tests.service.faults.sites import Replica, Site, path

pytestmark = [
    pytest.mark.long,
    pytest.mark.drawn,
    pytest.mark.timeout(400),
]
TAKES_OVER = 250.0
"""15 s after the last beat, and a pass; ten times as long on a busy machine."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, far_head: Head, postgres: Postgres) -> Iterator[Site]:
    url = postgres.empty(template="migrated")
    made = Site(tmp_path_factory.mktemp("site"), url.render_as_string(hide_password=False), far_head)
    made.set_up()
    yield made
    made.close()


@pytest.fixture(scope="module")
def replicas(site: Site) -> Iterator[list[Replica]]:
    with site.replica() as one, site.replica() as two:
        site.register(one.client)
        yield [one, two]


def test_the_other_replica_takes_over_from_a_killed_leader(site: Site, replicas: list[Replica]) -> None:
    gate = site.gate("killed")
    run = replicas[0].submit("killed", "killed")
    with site.single(run):
        gate.wait()
        replicas[0].reaches(run, "running")
        leader, other = _ordered(site, replicas)
        leader.kill()
        began = time.monotonic()
        gate.open()
        while _holder(site) == leader.pid:
            assert time.monotonic() - began < TAKES_OVER
            time.sleep(0.1)
        other.reaches(run, "done")
        leader.start()
    ours, theirs = (each.client.run(run).status() for each in replicas)
    assert ours == theirs and path(ours)[-2:] == [("running", 1), ("done", 1)]


def test_a_paused_leader_that_continues_does_no_harm(site: Site, replicas: list[Replica]) -> None:
    gate = site.gate("paused")
    run = replicas[0].submit("paused", "paused")
    with site.single(run):
        gate.wait()
        replicas[0].reaches(run, "running")
        leader, other = _ordered(site, replicas)
        leader.signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            while _holder(site) == leader.pid:
                assert time.monotonic() - began < TAKES_OVER  # a transaction that it held is ended first
                time.sleep(0.1)
            other.client.run(run).stop()
            found = other.reaches(run, "stopped")
            gate.open()
        finally:
            leader.signal(signal.SIGCONT)
        other.client.run(run).resume()
        leader.answers()
        found = leader.reaches(run, "done")
    assert ("stopped", 1) in path(found) and path(found)[-1] == ("done", 2)
    assert other.client.run(run).status() == leader.client.run(run).status()
    assert _holder(site) == other.pid
    site.same_as_local("paused")


def _ordered(site: Site, replicas: list[Replica]) -> tuple[Replica, Replica]:
    """The leader, and the other one."""
    one, two = replicas
    return (one, two) if _holder(site) == one.pid else (two, one)


def _holder(site: Site) -> int:
    """Process of the leader."""
    return site.leader()[0]
