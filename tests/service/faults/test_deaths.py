"""The service is killed before and after all that it writes and does; it starts again, and the run comes to its end
once, with one job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

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
BRIEF = {"starting", "stopping"}
KILL = ["before kill", "after kill", "before write killed", "after write killed"]


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
    write(deaths, BEGIN)
    run = replica.submit("deaths", "deaths")
    with site.single(run):
        gate.wait()
        replica.reaches(run, "running")
        _all_passed(replica, deaths, run)
        write(deaths, STOP)
        replica.client.run(run).stop()
        replica.reaches(run, "stopped")
        gate.open()
        _all_passed(replica, deaths, run)
        write(deaths, ["before submit", "after submit", "before write done", "after write done"])
        replica.client.run(run).resume()
        found = replica.reaches(run, "done")
    _all_passed(replica, deaths, run)
    first = [state for state, attempt in path(found) if attempt == 1 and state not in BRIEF]
    assert first == ["queued", "submitting", "running", "stopped"]
    assert path(found)[-1] == ("done", 2)
    assert set(site.head.jobs(run)) == {f"{run}-1", f"{run}-2"}
    site.same_as_local("deaths")


def test_it_dies_at_every_point_of_a_kill(site: Site, replica: Replica, deaths: Path) -> None:
    gate = site.gate("killed")
    run = replica.submit("killed", "killed")
    gate.wait()
    replica.reaches(run, "running")
    write(deaths, KILL)
    replica.client.run(run).kill()
    found = replica.reaches(run, "killed")
    _all_passed(replica, deaths, run)
    assert [change for change in path(found) if change[0] not in BRIEF][-2:] == [("running", 1), ("killed", 1)]
    assert list(site.head.jobs(run).values()) in (["failed"], ["stopped"])


def _all_passed(replica: Replica, deaths: Path, run: str) -> None:
    """Each point was reached, except for states that had passed before it started again; nothing else went wrong."""
    replica.answers()
    changes = path(replica.client.run(run).status())
    states = {state for state, attempt in changes if attempt == changes[-1][1]}
    for point in json.loads(deaths.read_text()):
        state = point.rpartition("write ")[2]
        assert state in BRIEF and state not in states, (point, changes)
    assert "Traceback" not in replica.said
