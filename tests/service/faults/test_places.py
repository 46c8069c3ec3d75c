"""What the service depends on fails for a while, and the run under way is not harmed: the disk of its database is full,
its workspace is not mounted or read-only, its clock jumps by a day."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from curate.client import ServerError
from tests.service.faults.heads import Head
from tests.service.faults.sites import Replica, Site, path

pytestmark = [
    pytest.mark.long,
    pytest.mark.drawn,
    pytest.mark.timeout(400),
]

DAY = 86_400.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, far_head: Head) -> Iterator[Site]:
    """Its database is on a file system of 8 MB."""
    folder = tmp_path_factory.mktemp("site")
    disk = folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "small", disk], check=False).returncode:
        pytest.skip("file systems cannot be mounted")
    made = Site(folder, f"sqlite:///{disk / 'service.db'}", far_head)
    try:
        made.set_up()
        yield made
    finally:
        made.close()
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.fixture(scope="module")
def ahead(site: Site) -> Path:
    """Holds the seconds by which the clock of the service is off."""
    file = site.folder / "ahead"
    file.write_text("0")
    return file


@pytest.fixture(scope="module")
def replica(site: Site, ahead: Path) -> Iterator[Replica]:
    with site.replica(quick=True, ahead=str(ahead), alone=True) as made:
        site.register(made.client)
        yield made


def test_a_full_disk_of_the_database_harms_no_run(site: Site, replica: Replica) -> None:
    gate = site.gate("full")
    run = replica.submit("full", "full")
    gate.wait()
    replica.reaches(run, "running")
    fill = site.folder / "disk" / "fill"
    _fill(fill)
    try:
        with pytest.raises(ServerError, match="the database does not take the request"):
            _write_much(replica)
        assert replica.client.run(run).state == "running"
        gate.open()
        _eventually(lambda: site.result(f"{run}-1").exists())
    finally:
        fill.unlink()
    assert path(replica.reaches(run, "done"))[-2:] == [("running", 1), ("done", 1)]
    _write_much(replica, 1)


def test_a_workspace_that_is_not_mounted_for_a_while_harms_no_run(site: Site, replica: Replica) -> None:
    gate = site.gate("gone")
    run = replica.submit("gone", "gone")
    gate.wait()
    replica.reaches(run, "running")
    replica.inside("mount", "-t", "tmpfs", "empty", str(site.workspace))
    try:
        _eventually(lambda: "not a workspace" in replica.client.run(run).status()["reason"])
        gate.open()
        _eventually(lambda: site.result(f"{run}-1").exists())
        _eventually(lambda: site.head.jobs(run) == {f"{run}-1": "succeeded"})
        time.sleep(5)  # some passes in which a wrong service would take it as lost
        assert replica.client.run(run).status()["state"] == "running"
    finally:
        replica.inside("umount", str(site.workspace))
    found = replica.reaches(run, "done")
    assert path(found)[-2:] == [("running", 1), ("done", 1)]


def test_a_stop_waits_for_a_workspace_that_is_read_only(site: Site, replica: Replica) -> None:
    gate = site.gate("fixed")
    run = replica.submit("fixed", "fixed")
    gate.wait()
    replica.reaches(run, "running")
    place = str(site.workspace)
    replica.inside("mount", "--bind", place, place)
    replica.inside("mount", "-o", "remount,bind,ro", place)
    try:
        replica.client.run(run).stop()
        _eventually(lambda: "read-only file system" in replica.client.run(run).status()["reason"])
    finally:
        replica.inside("umount", place)
    replica.reaches(run, "stopped")
    gate.open()


def test_a_clock_that_jumps_by_a_day_harms_no_run(site: Site, replica: Replica, ahead: Path) -> None:
    gate = site.gate("clock")
    run = replica.submit("clock", "clock")
    gate.wait()
    replica.reaches(run, "running")
    for jump in (DAY, -DAY, 0.0):
        ahead.write_text(str(jump))
        site.passes()
        assert replica.client.run(run).state == "running"
    ahead.write_text(str(-DAY))
    gate.open()
    found = replica.reaches(run, "done")
    ahead.write_text("0")
    assert [state for state, _ in path(found)] == ["queued", "submitting", "starting", "running", "done"]
    assert found["seconds"] is None or found["seconds"] >= 0


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(b"\0" * 4096)
        except OSError:
            return


def _write_much(replica: Replica, times: int = 10_000) -> None:
    """Into the database, until it takes no more."""
    for number in range(times):
        root = {"kind": "root", "name": f"root{time.time_ns()}-{number}", "value": "/nowhere"}
        replica.client.post("registrations", root)


def _eventually(true: Callable[[], bool], seconds: float = 180.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.2)
