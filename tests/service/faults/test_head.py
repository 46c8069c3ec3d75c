"""A real head that is slow, cut off, or dies: what people see, and that no result is lost.

Runs that end by themselves, by a stop or by a kill are nightly: in CI, test_deaths.py has a stop, a resume and a kill
on this head, and the bytes of the local engine."""

from __future__ import annotations

import json
import time

import pytest

from curate.service.reconcile.observe import GONE_SECONDS
from tests.service.faults.heads import Head
from tests.service.faults.sites import Replica, Site, path

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.mark.nightly
def test_a_run_is_done_with_the_bytes_of_the_local_engine(site: Site, replica: Replica) -> None:
    run = replica.submit("plain")
    found = replica.reaches(run, "done")
    assert [state for state, _ in path(found)] == ["queued", "submitting", "starting", "running", "done"]
    site.same_as_local("plain")


@pytest.mark.nightly
def test_a_stop_drains_and_a_resume_computes_only_the_rest(site: Site, replica: Replica) -> None:
    gate = site.gate("stop")
    run = replica.submit("stopped", "stop")
    gate.wait()
    replica.client.run(run).stop()
    found = replica.reaches(run, "stopped")
    gate.open()
    assert ("stopping", 1) in path(found) and found["reason"].startswith("stopped")

    replica.client.run(run).resume()
    found = replica.reaches(run, "done")
    states = {stage["stage"]: stage["state"] for stage in found["stage_list"]}
    assert (found["attempt"], states["pool"]) == (2, "reused")
    site.same_as_local("stopped")


@pytest.mark.nightly
def test_a_kill_does_not_wait_for_the_drain(site: Site, replica: Replica) -> None:
    gate = site.gate("kill")
    run = replica.submit("killed", "kill", drain_seconds=3600)
    gate.wait()
    replica.client.run(run).kill()
    found = replica.reaches(run, "killed")
    assert found["reason"] == "killed on request"
    assert site.head.jobs(run)[f"{run}-1"] not in ("pending", "running")


def test_a_run_whose_cluster_does_not_answer_stays_running_and_ends_done(site: Site, replica: Replica) -> None:
    gate = site.gate("cut")
    run = replica.submit("cut", "cut")
    gate.wait()
    replica.reaches(run, "running")
    site.head.cut()
    try:
        _unhealthy(replica)
        time.sleep(GONE_SECONDS + 1)  # after which a driver is given up that seems to be dead
        found = replica.client.run(run).status()
        assert (found["state"], found["reason"]) == ("running", "its target does not answer")
        waiting = replica.submit("waiting")
        gate.open()
        assert path(replica.reaches(run, "done"))[-2:] == [("running", 1), ("done", 1)]
        found = replica.client.run(waiting).status()
        assert found["state"] == "queued" and "does not answer" in found["reason"]
    finally:
        site.head.mend()
    replica.reaches(waiting, "done")
    site.same_as_local("cut")


def test_a_run_whose_head_dies_is_lost_resubmitted_and_done_with_the_same_bytes(site: Site, replica: Replica) -> None:
    gate = site.gate("dies")
    run = replica.submit("dies", "dies")
    gate.wait()
    replica.reaches(run, "running")
    site.head.kill()
    gate.open()
    found = replica.reaches(run, ["lost", "queued"])
    assert ("lost", 1) in path(found)
    head: Head = site.head
    head.start()
    with site.single(run):
        found = replica.reaches(run, "done")
    second = [state for state, attempt in path(found) if attempt == 2]
    assert second == ["queued", "submitting", "starting", "running", "done"]
    assert set(head.jobs(run)) == {f"{run}-2"}
    site.same_as_local("dies")
    record = json.loads((site.workspace / "runs" / f"{run}-2" / "result.json").read_text())
    assert record["reused"]["pool"]


def _unhealthy(replica: Replica) -> None:
    until = time.monotonic() + 180
    while replica.client.get("targets/far")["health"]["healthy"]:
        assert time.monotonic() < until
        time.sleep(0.2)
