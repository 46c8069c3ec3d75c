"""Groups of workers: the same artifact from either engine, from one process in memory, and after any kill."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core import group as core
from curate.core.errors import CorruptError, CurateError, InputError, StageError, StorageError
from curate.core.group import Group, MemoryGroup, Part, shard_ranges
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.nouns.pools import read_shards
from curate.core.rows import ColumnsRef, Rows
from curate.core.store.spill import spilled
from curate.core.store.storage import Storage, open_storage
from curate.engine.record.events import read_events
from curate.engine.record.runs import list_runs
from curate.engine.run import Result, run
from curate.engine.units.fit import parts
from curate.engine.units.fit.parts import Block, FromCells
from tests.core.store.object_store import new_bucket
from tests.draw import drawn
from tests.e2e.commands import curate
from tests.engine import toys, workspaces
from tests.engine.deaths import deaths
from tests.engine.forks import Drivers
from tests.engine.gates import Gate
from tests.engine.test_object_store import mirror

PART_ROWS = 16
"""64 rows are four parts of two shards each."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "LEAST_PART_ROWS", PART_ROWS)


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    with Drivers() as made:
        yield made


@pytest.fixture(scope="module")
def clean(memory: Path, drivers: Drivers) -> tuple[Path, list[str]]:
    """An undisturbed run: its workspace, and its fault points from the fit's first on."""
    folder, log = memory / "groups", memory / "groups.log"
    said = drivers.run(folder, fits={}, part_rows=PART_ROWS, environment={"CURATE_FAULT_LOG": str(log)})
    assert said["error"] is None
    points = [p for p in log.read_text().splitlines() if not p.startswith(("publish:leases/", "publish:runs/"))]
    return folder, points[points.index("load:pool:0") :]


def artifact(result: Result) -> StoredArtifact:
    workspace, base = result.outputs["means"].split("/artifacts/")
    return StoredArtifact(open_storage(workspace), f"artifacts/{base}")


def held(workspace: Path, stage: toys.Means) -> MemoryGroup:
    """The parts that workers hold, in this process."""
    storage = open_storage(str(workspace))
    [version] = (workspace / "pools/toys/versions").iterdir()
    [base] = (workspace / "facts/toy.brightness").glob("*/*/versions/*")
    path = base.parent.parent.relative_to(workspace)
    shards = read_shards(storage, f"pools/toys/versions/{version.name}")
    ref = ColumnsRef("bright", str(path), str(base.relative_to(workspace)), ("brightness",))
    rows = Rows(storage, (ref,))
    loaded = [stage.load(rows.live_table(shard, stage.reads())) for shard in shards]
    stretches = shard_ranges([shard.rows for shard in shards], PART_ROWS)
    return MemoryGroup([{n: np.concatenate([x[n] for x in loaded[a:b]]) for n in loaded[a]} for a, b in stretches])


# --- one artifact -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_as_in_memory(workspace: Path, share: float) -> None:
    result = run(toys.fits(share=share), str(workspace))
    found, group = artifact(result), held(workspace, toys.Means(share=share))
    expected = toys.Means(share=share).fit(group)
    assert len(group.parts) == 4
    assert found["means"].tobytes() == expected["means"].tobytes() and found["facts"] == expected["facts"]
    assert (result.ledger["means"].before, result.ledger["means"].after) == (64, 64)  # also those left out by `load`
    assert found.parts("sorted") == [0, 1, 2]
    for index, kept in group._stored.get("sorted", {}).items():
        assert np.array_equal(found.part("sorted", index)["value"], kept["value"])
    assert not list(workspace.rglob("work"))


@pytest.mark.long
def test_ray_writes_the_same_bytes(clean: tuple[Path, list[str]], workspace: Path, on_ray: Any) -> None:
    run(toys.fits(), str(workspace), engine=on_ray)
    workspaces.assert_same(clean[0], workspace)


@pytest.mark.long
def test_an_object_store_holds_the_same_bytes(clean: tuple[Path, list[str]], object_store: Any, tmp_path: Path) -> None:
    url = f"s3://{new_bucket(object_store)}/workspace"
    result = run(toys.fits(), url)
    workspaces.assert_same(clean[0], mirror(Storage(url), tmp_path))
    assert artifact(result).part("sorted", 1)["vector"].dtype == np.float16


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_workers_killed_in_steps(clean: tuple[Path, list[str]], workspace: Path, tmp_path: Path, on_ray: Any) -> None:
    """While they load, in the first call and in later ones, and while they regroup and store: the fit resumes."""
    points = (
        "load:pool:1",
        "step:1:pool:0:begun",
        "step:3:pool:2:done",
        "publish:*/cells/000001.npz:written",
        "step:5:cells:2:begun",
        "publish:*/sorted/000000.npz:published",
    )
    with deaths(on_ray, drawn(points), tmp_path):
        run(toys.fits(), str(workspace), engine=on_ray)
    workspaces.assert_same(clean[0], workspace)


def resume(drivers: Drivers, workspace: Path, log: Path, **kill: Any) -> dict[str, Any]:
    """A run that does no pass again that a checkpoint holds, wherever it ends."""
    saved = [int(path.stem) for path in workspace.glob("artifacts/*/*/*/checkpoints/*.npz")]
    assert len(saved) <= 3  # the two last, and one more for a moment
    log.write_text("")
    said = drivers.run(workspace, fits={"log": str(log)}, part_rows=PART_ROWS, **kill)
    rounds = log.read_text().split()
    assert rounds == [str(number) for number in range(max(saved, default=0), 3)][: len(rounds)], (kill, saved)
    return said


@pytest.mark.long
def test_driver_killed_wherever_it_writes(
    clean: tuple[Path, list[str]], workspace: Path, tmp_path: Path, drivers: Drivers
) -> None:
    """Each run resumes where the one before was killed."""
    folder, points = clean
    visited = drawn([point for point in points if point.startswith("publish:")])
    assert len(visited) > 3
    for point in visited:
        said = resume(drivers, workspace, tmp_path / "log", environment={"CURATE_FAULT_KILL": point})
        assert said["signal"] == signal.SIGKILL, (point, said)
    assert resume(drivers, workspace, tmp_path / "log")["error"] is None
    workspaces.assert_same(folder, workspace)


@pytest.mark.long
def test_driver_killed_in_every_call(
    clean: tuple[Path, list[str]], workspace: Path, tmp_path: Path, drivers: Drivers
) -> None:
    """While a group's parts are loaded, and before or after one of the steps of each call."""
    folder, points = clean
    kinds: dict[str, list[str]] = {}
    for point in points:
        if not point.startswith("publish:"):
            kinds.setdefault(":".join(point.split(":")[:2]), []).append(point)
    chance = random.Random(1)
    visited = drawn([chance.choice(some) for some in kinds.values()])
    assert visited
    for point in visited:
        said = resume(drivers, workspace, tmp_path / "log", environment={"CURATE_FAULT_KILL": point})
        assert said["signal"] == signal.SIGKILL, (point, said)
        assert resume(drivers, workspace, tmp_path / "log")["error"] is None, point
        workspaces.assert_same(folder, workspace)
        shutil.rmtree(workspace)


@pytest.mark.long
def test_driver_killed_under_ray(
    clean: tuple[Path, list[str]], workspace: Path, tmp_path: Path, drivers: Drivers, on_ray: Any, on_this_ray: str
) -> None:
    kill = {"CURATE_FAULT_KILL": "publish:*/checkpoints/000002.npz:published", "RAY_ADDRESS": on_this_ray}
    said = drivers.run(workspace, fits={}, part_rows=PART_ROWS, engine="ray", environment=kill)
    assert said["signal"] == signal.SIGKILL
    words = curate("status", list_runs(open_storage(str(workspace)))[0], "-w", workspace).words
    assert "killed" in words and "0%, round 0" in words
    log = tmp_path / "rounds.log"
    run(toys.fits(log=str(log)), str(workspace), engine=on_ray)
    assert log.read_text().split() == ["2"]
    events = read_events(open_storage(str(workspace)), list_runs(open_storage(str(workspace)))[-1])
    assert [(e["event"], e["number"]) for e in events if "number" in e] == [("resumed", 2), ("checkpoint", 3)]
    workspaces.assert_same(clean[0], workspace)


def test_sigterm_drains(clean: tuple[Path, list[str]], workspace: Path, drivers: Drivers, gate: Gate) -> None:
    driver = drivers.start(workspace, fits={"gate": str(gate.folder)}, part_rows=PART_ROWS)
    gate.wait()
    os.kill(driver, signal.SIGTERM)
    gate.open()
    assert "the same command resumes from there" in drivers.end()["error"]
    assert [path.name for path in workspace.rglob("checkpoints/*.npz")] == ["000001.npz"]
    log = gate.folder / "rounds.log"
    assert drivers.run(workspace, fits={"log": str(log)}, part_rows=PART_ROWS)["error"] is None
    assert log.read_text().split() == ["1", "2"]
    workspaces.assert_same(clean[0], workspace)


# --- what a fit can do wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [PART_ROWS, 1 << 14])
def test_rows_of_two_kinds(workspace: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of one part, or of two."""
    monkeypatch.setattr(core, "LEAST_PART_ROWS", rows)
    with pytest.raises(InputError) as refused:
        run(toys.fits(bad="shape"), str(workspace))
    said = str(refused.value)
    assert said.startswith("pipeline: means: toy.means: 'vector' of shard ")
    assert "float16 2 per row" in said and "float16 3 per row" in said and "one encoder" in said


def test_a_shard_without_its_facts(workspace: Path, at_once: None) -> None:
    """A missing table is recomputed; a corrupt one is an error with a remedy."""
    run(toys.fits(), str(workspace))
    lost = sorted(workspace.glob("facts/toy.brightness/*/*/*/000001.parquet"))[1]
    real, known = lost.read_bytes(), workspaces.facts(workspace)
    lost.write_bytes(real[:100])
    with pytest.raises(CorruptError, match=r"this table of facts is corrupt or missing .*; remove the folder") as said:
        run(toys.fits(rounds=4), str(workspace))
    assert str(lost) in str(said.value) and str(lost.parent.relative_to(workspace)) in str(said.value)
    shutil.rmtree(lost.parent)
    mended = run(toys.fits(rounds=4), str(workspace))
    assert mended.counts["bright"].computed == 8 and mended.ledger["means"].before == 64
    assert workspaces.facts(workspace) == known


def test_a_step_that_raises(workspace: Path, at_once: None, on_ray: Any) -> None:
    for engine in ("local", on_ray):
        with pytest.raises(StageError, match=r"^means: ValueError: cannot add this up; fix the cause"):
            run(toys.fits(bad="step"), str(workspace), engine=engine)


class Odd(toys.Means):
    """A fit that tries things out."""

    op = "toy.odd"
    how: str = ""

    def fit(self, group: Group) -> Any:
        return getattr(self, f"_{self.how}")(group)

    def _twice(self, group: Group) -> Any:
        group.scatter("few", {"x": np.arange(3)})
        return group.scatter("few", {"x": np.arange(3)})

    def _stored_twice(self, group: Group) -> Any:
        for _ in range(2):
            list(group.each(toys.outputs.keep_sorted))

    def _side_by_side(self, group: Group) -> Any:
        few = group.scatter("few", {"x": np.arange(40.0)})
        next(group.each(sizes))  # and never the rest
        pairs = [
            (number, rows, list(few.each(sizes))) for number, rows in enumerate(group.each(sizes))
        ]  # a call inside of another
        return {"facts": {"pairs": pairs, "zipped": list(zip(group.each(sizes), few.each(sizes), strict=False))}}

    def _read_only(self, group: Group) -> Any:
        shared = np.zeros(3)
        [first, *_] = group.each(writes, shared=shared)
        assert not first.flags.writeable and not shared.any()
        return {"facts": {}}

    def _drop_parts(self, group: Group) -> Any:
        """Parts of a group that is no longer in use are dropped."""
        before = sum(group.scatter("once", {"x": np.arange(40.0)}).each(sizes))
        cells = group.partition("cells", spread, 7)
        return {"facts": {"before": before, "held": list(dict.fromkeys(cells.each(held_groups)))}}

    def _many(self, group: Group) -> Any:
        cells = group.partition("cells", spread, 1500)
        assert sum(cells.rows) == 2 * sum(group.rows) and len(cells.rows) == 1500
        found = list(cells.each(sizes))
        assert found == list(cells.rows)
        nested = cells.partition("nested", spread, 7)
        return {"facts": {"rows": list(nested.rows), "found": list(nested.each(sizes))}}


def sizes(part: Part, shared: Any) -> int:
    return part.rows


def held_groups(part: Part, shared: Any) -> str:
    [blocks] = parts._blocks.values()
    return " ".join(sorted({group for group, _ in blocks} - {"pool"}))


def writes(part: Part, shared: Any) -> Any:
    for array in (shared["shared"], *part.arrays.values()):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    return np.arange(3)


def spread(part: Part, shared: Any) -> Any:
    """Every row goes to two cells out of at most 1500."""
    value = np.tile(part.arrays["value"], 2)
    cell = (value * 1000).astype(np.int64) % 7
    return cell, {"value": value}


def odd(how: str, engine: Any, workspace: Path) -> Result:
    pipeline = toys.fits()
    made = toys.Pipeline()
    for node in pipeline.nodes.values():
        stage = Odd(how=how) if node.name == "means" else node.stage
        made.add(node.name, stage, node.inputs, **node.ports)
    return run(made, str(workspace), engine=engine)


@pytest.mark.parametrize("how", ["twice", "stored_twice"])
def test_a_name_used_twice(workspace: Path, how: str) -> None:
    with pytest.raises(ValueError, match=r"'(few|sorted)' is already a name of this fit"):
        odd(how, "local", workspace)


@pytest.mark.long
def test_the_same_on_both_engines(workspace: Path, memory: Path, on_ray: Any) -> None:
    for how in ("side_by_side", "read_only", "many", "drop_parts"):
        local, other = odd(how, "local", workspace), odd(how, on_ray, memory / "other")
        assert artifact(local)["facts"] == artifact(other)["facts"]
    shutil.rmtree(memory / "other")


def test_calls_inside_of_calls(workspace: Path) -> None:
    facts = artifact(odd("side_by_side", "local", workspace))["facts"]
    assert facts["pairs"] == [[number, 16, [20, 20]] for number in range(4)]
    assert facts["zipped"] == [[16, 20], [16, 20]]


def test_spilled_rows_are_removed_with_the_fit(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    monkeypatch.setenv("CURATE_SPILL", str(tmp_path / "spill"))
    run(toys.fits(), str(workspace))
    assert list((tmp_path / "spill").iterdir()) == [] and parts._blocks == {}
    monkeypatch.setenv("CURATE_SPILL", "/proc/spill")
    with pytest.raises(CurateError, match=r"/proc/spill"):
        run(toys.fits(rounds=1), str(workspace))


def test_a_full_disk_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATE_SPILL", "/dev/shm")
    with pytest.raises(StorageError, match=r"/dev/shm: no room for a worker's rows .*; set CURATE_SPILL to another"):
        spilled((1 << 50,), "<f4")


# --- kernels ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 5), max_size=12), min_size=1, max_size=4), st.data())
def test_cells_hold_their_rows_in_order(
    tmp_path_factory: pytest.TempPathFactory, cells: list[list[int]], data: st.DataObject
) -> None:
    storage = open_storage(str(tmp_path_factory.mktemp("cells")))
    arrays = []
    for number, cell in enumerate(cells):
        rows = np.arange(len(cell)) + 100 * number
        arrays.append({"cell": np.array(cell, dtype=np.int64), "row": rows, "wide": np.stack([rows, -rows], axis=1)})
        task: Any = SimpleNamespace(storage=storage, folder="cells", cells=6)
        parts._write_cells(task, parts.cell_file("cells", number), arrays[-1]["cell"], arrays[-1])
    group = MemoryGroup(arrays).partition("cells", lambda part, _: (part.arrays["cell"], part.arrays), 6)
    cuts = sorted(data.draw(st.sets(st.integers(1, 5))))
    found = [
        part
        for first, stop in pairwise([0, *cuts, 6])
        for part in FromCells(storage, "cells", len(cells), first, stop).load(Block())
    ]
    for mine, expected in zip(found, group.parts, strict=True):
        assert {name: array.tolist() for name, array in mine.items()} == {n: a.tolist() for n, a in expected.items()}


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 20))
def test_pieces_are_joined(rows: list[int], least: int) -> None:
    stretches = shard_ranges(rows, least)
    assert [n for a, b in stretches for n in range(a, b)] == list(range(len(rows)))
    assert all(sum(rows[a:b]) >= least for a, b in stretches[:-1])
    assert all(sum(rows[a : b - 1]) < least for a, b in stretches)
