"""A derived pool whose parents are damaged or crash, and kills at every point."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curate.codec.tars import read_spans
from curate.core.contracts import Derive
from curate.core.errors import CurateError
from curate.core.ledger import SET_ASIDE
from curate.core.recipe.pipeline import Pipeline
from curate.core.rows import Rows
from curate.core.store.storage import open_storage
from curate.engine.record.runs import latest
from curate.engine.run import run
from curate.engine.tasks import running as tasks
from curate.engine.units.derive.children import DeriveTask, derive_shards
from tests.draw import drawn
from tests.engine import derived, toys, workspaces
from tests.engine.deaths import deaths
from tests.engine.derived import ALL, LOOSE, STRICT, number_of, rows, shards
from tests.engine.forks import Drivers


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_missing_parents_tar_matters_only_when_it_is_read(workspace: Path, log: Path) -> None:
    run(derived.pipeline(light__darkest=STRICT), str(workspace))
    lost = shards(workspace)[0].parent_shard()
    (workspace / lost.tar).unlink()
    assert all(run(derived.pipeline(light__darkest=STRICT), str(workspace)).reused.values())
    result = run(derived.pipeline(), str(workspace), options=ALL)
    assert result.ledger["tiles"].error.keys() == {SET_ASIDE}
    assert result.ledger["tiles"].before == 20 == result.ledger["tiles"].after + result.ledger["tiles"].error.total()


@pytest.mark.usefixtures("at_once")
def test_a_missing_parents_table_is_a_one_line_error(workspace: Path) -> None:
    short = Pipeline()
    short.add("pool", toys.Numbers(namespace="toys", rows=10, shard_rows=5)).add("tiles", derived.Tiles(), "pool")
    short.add("every", derived.Every(), "tiles").add("dataset", derived.Plain(), "every").check()
    run(short, str(workspace))
    (workspace / shards(workspace)[0].parent_shard().table).unlink()
    for folder in (*workspace.glob("pools/tiles/versions/*"), *workspace.glob("selections/*/*")):
        (folder / "manifest.json").unlink()
    with pytest.raises(Exception, match=r"this table of a pool is corrupt or missing .*; restore it") as error:
        run(short, str(workspace))
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_a_parent_that_kills_the_process_is_found(workspace: Path, on_ray: Any) -> None:
    made = derived.pipeline(tiles__killing=(2,), pool__rows=4, pool__shard_rows=2)
    result = run(made, str(workspace), engine=on_ray, options=ALL)
    assert result.ledger["tiles"].error == {"killed": 1}
    assert (result.ledger["tiles"].after, result.ledger["tiles"].children) == (3, 6)
    assert {number_of(row) for row in rows(workspace)} == {0, 1, 3}


def test_an_error_that_ends_the_run_leaves_no_mark(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Derive, sample: Any) -> Any:
        raise CurateError("the disk is full")

    monkeypatch.setattr(derived.Tiles, "children", broken)
    with pytest.raises(CurateError, match="disk is full"):
        run(derived.pipeline(), str(workspace))
    assert not [name for name in workspaces.files(workspace) if "/attempts/" in name]


@pytest.mark.long
def test_parents_that_hang_are_left_out_and_nothing_durable_is_repeated(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five in one unit of four shards: more than one shard may retry."""
    monkeypatch.setattr(tasks, "START_METHOD", "fork")
    log, hanging = tmp_path / "calls", (3, 7, 8, 12, 17)
    made = derived.pipeline(tiles__hanging=hanging, tiles__log=str(log), pool__rows=20, pool__shard_rows=5)
    result = run(made, str(workspace), options=replace(ALL, deadline=2.0))
    entry = result.ledger["tiles"]
    assert (entry.error, entry.after, entry.children) == ({"hung": 5}, 15, 30)
    calls = Counter(map(int, log.read_text().split()))
    assert max(calls[number] for number in range(20) if number not in hanging) <= 3
    assert {number_of(row) for row in rows(workspace)} == set(range(20)) - set(hanging)


@pytest.mark.long
def test_a_parent_that_kills_the_only_process_is_found_by_the_next_run(workspace: Path) -> None:
    with Drivers() as drivers:
        order = {"derived": {"tiles__killing": [3]}, "options": {"failure_budget": 1.0}}
        assert drivers.run(workspace, **order)["signal"] == signal.SIGKILL
        assert drivers.run(workspace, **order) == {"signal": 0, "error": None, "calls": 0}
        entry = latest(open_storage(str(workspace)), None).ledger()["tiles"]
        assert (entry.error, entry.after) == ({"killed": 1}, 19)
        assert not [name for name in workspaces.files(workspace) if "/attempts/" in name]


def test_two_runs_never_make_the_same_child_twice(workspace: Path) -> None:
    """The second run has not seen the first one's table, and has other alive rows."""
    made = derived.pipeline(light__darkest=LOOSE)
    run(made, str(workspace))
    storage = open_storage(str(workspace))
    first = shards(workspace)[0]
    folder = first.table.rsplit("/", 2)[0]
    parents = Rows(storage)
    stage = made.nodes["tiles"].stage
    assert isinstance(stage, Derive)
    task = DeriveTask(
        storage=storage, stage=stage, name="tiles", rows=parents, ports={}, shards=(first.parent_shard(),),
        folder=folder, numbers=(0,),
    )  # fmt: skip
    [line] = derive_shards(task)
    assert (line["number"], line["entry"]["children"], line["repeated"]) == (2, 10, first.rows // 2)
    keys = [
        key
        for shard in line["shards"]
        for key in storage.read_table(shard["table"], columns=["key"]).column("key").to_pylist()
    ]
    assert len(keys) == len(set(keys)) == 10
    for shard in line["shards"]:  # each tar holds what its table says
        table = storage.read_table(shard["table"]).to_pylist()
        spans = [(row["offset"], row["size"]) for row in table]
        found = read_spans(storage.fs, storage.path(shard["tar"]), spans, shard["tar_bytes"])
        assert all(data[:2] == b"BM" for data in found)
    [again] = derive_shards(task)  # too late twice: for five parents, and for the two that the first table lacks
    assert (again["number"], again["computed"], again["repeated"]) == (2, 7, 5)


# --- kills ------------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"pool__rows": 10, "light__darkest": LOOSE}
LARGE: dict[str, Any] = {"pool__rows": 10}


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    with Drivers() as made:
        yield made


@pytest.fixture(scope="module")
def clean(memory: Path, drivers: Drivers) -> tuple[list[Path], list[list[str]]]:
    """An undisturbed run, and then one with a looser filter: their workspaces, and the points in the derived pool."""
    log, points = memory / "derived.log", list[list[str]]()
    first, second = memory / "derived-first", memory / "derived-second"
    for folder, changes in ((first, SMALL), (second, LARGE)):
        said = drivers.run(folder, derived=changes, environment={"CURATE_FAULT_LOG": str(log)})
        assert said["error"] is None
        points.append([line for line in log.read_text().splitlines() if "pools/tiles/" in line])
        log.unlink()
        if folder == first:
            shutil.copytree(first, second)
    return [first, second], points


@pytest.mark.long
def test_bytes_exist_before_the_tables_that_name_them(clean: tuple[list[Path], list[list[str]]]) -> None:
    for number, points in enumerate(clean[1], 1):
        done = [point.removesuffix(":published") for point in points if point.endswith(":published")]
        names = [point.rsplit("/", 1)[1] for point in done if "/keys/" not in point]
        assert names[-3:] == ["covers.parquet", "shards.parquet", "manifest.json"]
        assert [name.partition("-")[0] for name in names[:-3:2]] == [f"{number:06d}"] * 2
        assert names[1:-3:2] == [f"{number:06d}.parquet"] * 2 and all(name.endswith(".tar") for name in names[:-3:2])
        assert sum("/attempts/" in point for point in points) == 1  # both shards are a unit


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.long
def test_killed_at_every_point(
    memory: Path, clean: tuple[list[Path], list[list[str]]], drivers: Drivers, which: int
) -> None:
    target = memory / "derived-killed"
    points = drawn(clean[1][which])
    assert len(points) > 3
    for point in points:
        if which:
            shutil.copytree(clean[0][0], target)
        changes = (SMALL, LARGE)[which]
        killed = drivers.run(target, derived=changes, environment={"CURATE_FAULT_KILL": point})
        assert killed["signal"] == signal.SIGKILL, point
        assert drivers.run(target, derived=changes)["error"] is None
        workspaces.assert_same(clean[0][which], target)
        shutil.rmtree(target)


@pytest.mark.long
def test_workers_killed_under_ray(
    workspace: Path, tmp_path: Path, clean: tuple[list[Path], list[list[str]]], on_ray: Any
) -> None:
    points = (
        "publish:pools/tiles/derived/*.tar:published",
        "publish:pools/tiles/derived/*.parquet:published",
    )
    with deaths(on_ray, drawn(points), tmp_path):
        run(derived.pipeline(**SMALL), str(workspace), engine=on_ray)
    workspaces.assert_same(clean[0][0], workspace)
