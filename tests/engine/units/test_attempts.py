"""Several attempts at a portion of such a source: killed, failed, or at the same time. One wins and nothing is left."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from curate.core.contracts import Incoming, Portion, Source
from curate.core.errors import DrainedError, StorageError
from curate.core.nouns.pools import read_shards
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import Storage
from curate.engine.run import Result, run
from curate.engine.state import Options
from curate.engine.units.source import read
from tests.engine import toys, workspaces
from tests.engine.units.flaky import ROWS, build, fails, pool, table
from tests.engine.units.test_collect import write


@pytest.mark.parametrize("point", ["adopt", "publish_table", "create"])
def test_a_killed_run_leaves_no_orphan(
    site: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The first attempt ends while it publishes; meanwhile a row has failed permanently, so the second makes another
    shard."""
    plain = build(site, workspace.parent / "plain")
    fails(site, {"3-3": "TIMEOUT", "5-5": "TIMEOUT", "7-7": "RESET", "9-9": "gone", "1-1": "gone"})
    original, calls = getattr(Storage, point), []

    def dies(self: Storage, *args: Any, **options: Any) -> Any:
        places = [str(argument) for argument in args if "pools/fetched" in str(argument)]
        if places and not any("/pending/" in place for place in places):
            calls.append(places)
            raise DrainedError("killed")
        return original(self, *args, **options)

    monkeypatch.setattr(read.Storage, point, dies)
    with pytest.raises(DrainedError):
        build(site, workspace)
    assert calls
    monkeypatch.undo()
    fails(site, {"3-3": "TIMEOUT", "5-5": "TIMEOUT", "7-7": "RESET", "9-9": "gone"})
    assert build(site, workspace).ledger == plain.ledger
    assert workspaces.files(workspace, "pools/") == workspaces.files(workspace.parent / "plain", "pools/")


def test_an_attempt_that_fails_leaves_no_orphan(
    site: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    """It fails twice after it has published a tar; then rows fail permanently: the next attempt makes another shard."""
    original, failures = Storage.publish_table, []

    def fails_twice(self: Storage, relative: str, *args: Any, **options: Any) -> None:
        if "pools/fetched/shards/" in relative and len(failures) < 2:
            failures.append(relative)
            if len(failures) == 2:
                fails(site, {f"{n}-{n}": "gone" for n in range(1, ROWS)})
            raise StorageError("for a moment")
        original(self, relative, *args, **options)

    monkeypatch.setattr(Storage, "publish_table", fails_twice)
    build(site, workspace)
    assert len(failures) == 2
    build(site, workspace.parent / "plain")
    assert workspaces.files(workspace, "pools/") == workspaces.files(workspace.parent / "plain", "pools/")


def test_the_first_published_record_wins(site: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = workspace.parent / "other"
    build(site, other)
    fails(site, {})
    original = Storage.create

    def late(self: Storage, relative: str, data: bytes) -> None:
        if "/portions/" in relative:  # another run was quicker
            shutil.copytree(other / "pools", workspace / "pools", dirs_exist_ok=True)
        original(self, relative, data)

    monkeypatch.setattr(Storage, "create", late)
    result = build(site, workspace)
    assert result.ledger["pool"].error == Counter(timeout=2, reset=1)
    assert workspaces.files(workspace, "pools/") == workspaces.files(other, "pools/")


class Rival:
    """Another attempt at the first portion that publishes: it reads other bytes than this one."""

    def __init__(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site, self.original = site, read._publish
        self.ran = False
        monkeypatch.setattr(read, "_publish", self)

    def __call__(self, task: read.ImportTask, record: Any, files: Any) -> Any:
        if not self.ran:
            self.ran = True
            self.run(task)
        return self.original(task, record, files)

    def run(self, task: read.ImportTask) -> None:
        fails(self.site, {f"{n}-{n}": "gone" for n in range(1, ROWS)})
        read.import_portion(task)
        fails(self.site, {})


def whole(result: Result) -> int:
    """Number of rows in the tables of all shards. Their tars exist, and no other file does."""
    storage, base = pool(result)
    shards = read_shards(storage, base)
    namespace = base.rpartition("/versions/")[0]
    there = {f"{namespace}/shards/{name}" for name in storage.list(f"{namespace}/shards")}
    assert there == {path for shard in shards for path in (shard.tar, shard.table)}
    assert not Path(storage.path(f"{namespace}/pending")).exists()
    return table(result).num_rows


def test_attempts_at_the_same_time(site: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that publishes its record first wins, and the other removes its own files only."""
    rival = Rival(site, monkeypatch)
    result = build(site, workspace)
    assert rival.ran and whole(result) == ROWS
    assert result.ledger["pool"].unusable["gone"] > 1


def test_an_attempt_that_was_given_up_may_still_win(
    site: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It pauses after it has published its files, and continues right before the next one publishes its record."""

    class Paused(Rival):
        late: Any = None

        def __call__(self, task: read.ImportTask, record: Any, files: Any) -> Any:
            if self.late is None:
                self.late = task, record, files
                raise DrainedError("paused")
            if self.late[0].record == task.record:
                self.original(*self.late)
            return self.original(task, record, files)

    paused = Paused(site, monkeypatch)
    with pytest.raises(DrainedError):
        build(site, workspace)
    fails(site, {f"{n}-{n}": "gone" for n in range(1, ROWS)})
    result = build(site, workspace)
    assert whole(result) == ROWS and paused.late[1].shard.id in {shard.id for shard in read_shards(*pool(result))}


def test_a_run_killed_right_after_a_record(site: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier run was killed too, and another list was read since: what the first one left is removed."""

    def dies(*_: Any) -> None:
        raise DrainedError("killed")

    for point, codes in (("_publish", {"3-3": "TIMEOUT"}), ("clear", {f"{n}-{n}": "gone" for n in range(1, ROWS)})):
        fails(site, codes)
        with monkeypatch.context() as patch:
            patch.setattr(read, point, dies)
            with pytest.raises(DrainedError):
                build(site, workspace)
    other = site / "other"
    other.mkdir()
    write(other / "lists", b=[(50, 50)])
    fails(other, {})
    build(other, workspace)
    found = [*read_shards(*pool(build(site, workspace))), *read_shards(*pool(build(other, workspace)))]
    kept = {Path(path).name for shard in found for path in (shard.tar, shard.table)}
    assert {path.name for path in (workspace / "pools" / "fetched" / "shards").iterdir()} == kept
    assert not (workspace / "pools" / "fetched" / "pending").exists()


class Twins(Source):
    """Pairs of rows that share a member. It reads all rows, whatever is asked for."""

    op: ClassVar[str] = "toys.twins"
    repeatable: ClassVar[bool] = False
    namespace: str = "twins"

    def plan(self) -> list[Portion]:
        return [Portion({}, 2 * ROWS)]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        for n in range(ROWS):
            yield Incoming(f"{n}-a", ext="png", data=toys.image(n))
            yield Incoming(f"{n}-b", same_member=True)


def test_a_row_of_a_canary_run_has_its_own_member(workspace: Path) -> None:
    result = run(Pipeline().add("pool", Twins()), str(workspace), options=Options(sample=0.5), engine="local")
    rows = table(result).to_pylist()
    alone = {row["source_id"][:-2] for row in rows if row["source_id"].endswith("-b")}
    alone -= {row["source_id"][:-2] for row in rows if row["source_id"].endswith("-a")}
    assert alone and len(rows) < 2 * ROWS
    for row in rows:
        number = int(row["source_id"][:-2])
        assert (row["sha256"], row["ext"]) == (hashlib.sha256(toys.image(number)).hexdigest(), "png")
