"""The service is killed before and after all that it writes and does (each commit visits a third of these points, see
tests/draw.py); it starts again, and the run comes to its end once, with one job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.draw import drawn
from tests.service.faults.sites import Replica, Site, path, write

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(400),
]

BEGIN = [
    "before write submitting", "after write submitting", "before submit", "before job", "after submit",
    "before write starting", "after write starting", "before write running", "after write running",
]  # fmt: skip
STOP = ["before stop", "after stop", "before write stopping", "after write stopping", "before write stopped"]
RESUME = ["before submit", "after submit", "before write done", "after write done"]
KILL = ["before kill", "after kill", "before write killed", "after write killed"]
BRIEF = {"starting", "stopping"}
"""States that a run may have left when the service starts again, so that it is never written."""


def some(points: list[str]) -> list[str]:
    """A draw from the points that are certain to be met, and one from the others."""
    certain = [point for point in points if _state(point) not in BRIEF]
    chosen = drawn(certain)
    assert chosen
    return chosen + drawn([point for point in points if point not in certain])


@pytest.fixture(scope="module")
def deaths(site: Site) -> Path:
    file = site.folder / "deaths.json"
    file.write_text("[]")
    return file


@pytest.fixture(scope="module")
def replica(site: Site, deaths: Path) -> Iterator[Replica]:
    with site.replica(deaths=str(deaths), quick=True) as made:
        site.register(made.client)
        yield made


def test_it_dies_at_every_point_of_a_run_that_is_stopped_and_resumed(
    site: Site, replica: Replica, deaths: Path
) -> None:
    gate = site.gate("deaths")
    write(deaths, some(BEGIN))
    run = replica.submit("deaths", "deaths")
    with site.single(run):
        gate.wait()
        replica.reaches(run, "running")
        _all_passed(replica, deaths, run)
        write(deaths, some(STOP))
        replica.client.run(run).stop()
        replica.reaches(run, "stopped")
        gate.open()
        _all_passed(replica, deaths, run)
        write(deaths, some(RESUME))
        replica.client.run(run).resume()
        found = replica.reaches(run, "done")
    _all_passed(replica, deaths, run)
    first = [state for state, attempt in path(found) if attempt == 1 and state not in BRIEF]
    assert first == ["queued", "submitting", "running", "stopped"]
    assert path(found)[-1] == ("done", 2)
    assert set(site.head.jobs(run)) == {f"{run}-1", f"{run}-2"}
    site.same_as_local("deaths")


def test_it_dies_at_every_point_of_a_kill(site: Site, replica: Replica, deaths: Path) -> None:
    """Which does not wait for the drain."""
    gate = site.gate("killed")
    run = replica.submit("killed", "killed", drain_seconds=3600)
    gate.wait()
    replica.reaches(run, "running")
    write(deaths, some(KILL))
    replica.client.run(run).kill()
    found = replica.reaches(run, "killed")
    assert found["reason"] == "killed on request"
    _all_passed(replica, deaths, run)
    assert [change for change in path(found) if change[0] not in BRIEF][-2:] == [("running", 1), ("killed", 1)]
    assert list(site.head.jobs(run).values()) in (["failed"], ["stopped"])


def _all_passed(replica: Replica, deaths: Path, run: str) -> None:
    """Each point was reached, except for states that had passed before it started again; nothing else went wrong."""
    replica.answers()
    changes = path(replica.client.run(run).status())
    states = {state for state, attempt in changes if attempt == changes[-1][1]}
    for point in json.loads(deaths.read_text()):
        assert _state(point) in BRIEF and _state(point) not in states, (point, changes)
    assert "Traceback" not in replica.said


def _state(point: str) -> str:
    return point.rpartition("write ")[2]
