"""A whole pipeline: identical bytes, nothing computed twice, and only stages affected by a change recomputed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from curate.core.contracts import Portion
from curate.core.errors import CurateError, InputError, RecipeError, RunExistsError
from curate.core.nouns import facts
from curate.core.nouns.manifest import Manifest
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.record.runs import RunRecord
from curate.engine.run import Result, run
from curate.engine.state import Options
from curate.engine.units import shuffle
from curate.select.uniform import SelectUniform
from tests.engine import toys, workspaces

GOLDEN = {
    "pool": "28c3bd56e8b8c3cbb93376501c9287a4",
    "bright": "ea6246e12f67c1c0f904fca929794635",
    "light": "9837b1eb95c74192350c156de5475be2",
    "dear": "1c9059de719beeba939a618054e6b7e1",
    "parity": "0bf4759e22b59102782cbb2658aa65f3",
    "total": "479791981d76d319706676862cb62719",
    "contrast": "9215bb32fcb48a62056e0098584803e1",
    "brighter": "027502113b2e0947d94489256aed4671",
    "even": "61af7046bcf84be5354eec27840bb078",
    "dataset": "b90e1449b4816d7f532cd5850d8067fe",
    "page": "6f3c7c030cd4c3940b8f594213bf3944",
}
"""Fingerprints of the toy pipeline. They change when the recipe of fingerprints does: then every cache is lost."""


def fingerprints(workspace: Path, result: Result) -> dict[str, str]:
    outputs = RunRecord.load(open_storage(str(workspace)), result.run_id).outputs
    return {name: output["fingerprint"] for name, output in outputs.items()}


@pytest.fixture(scope="module")
def done(memory: Path) -> tuple[Path, Result]:
    """The undisturbed run that others are compared with; read only."""
    folder = memory / "undisturbed"
    return folder, run(toys.pipeline(), str(folder), run_id="first")


@pytest.fixture
def copy(done: tuple[Path, Result], workspace: Path) -> Path:
    shutil.copytree(done[0], workspace)
    return workspace


def test_ledger_adds_up(done: tuple[Path, Result]) -> None:
    ledger = done[1].ledger
    assert [ledger[name].before for name in ("pool", "bright", "light", "dear", "parity", "total")] == [40] * 6
    assert ledger["bright"].counters["seen"] == 40
    assert ledger["even"].after == ledger["even"].copies == ledger["dataset"].copies == 9
    assert sum(ledger["even"].rejected.values()) == 31
    assert not any(done[1].reused.values())


def test_dataset_holds_what_was_selected(done: tuple[Path, Result]) -> None:
    _, result = done
    storage = open_storage(result.outputs["dataset"])
    index = storage.read_table("index.parquet")
    assert index.num_rows == 9 and index.column("shard").to_pylist() == sorted(index.column("shard").to_pylist())
    for row in index.to_pylist():
        with storage.open(f"toys-{row['shard']:06d}.tar") as tar:
            tar.seek(row["offset"])
            data = tar.read(row["size"])
            tar.seek(row["text_offset"])
            number = int(tar.read(row["text_size"]).split()[-1])
        assert data == toys.image(number)
    assert not any(name.startswith(("order", "parts")) for name in storage.list(""))


def test_every_fingerprint_is_the_one_it_was(done: tuple[Path, Result]) -> None:
    assert fingerprints(*done) == GOLDEN


def test_another_workspace_gets_the_same_bytes(done: tuple[Path, Result], workspace: Path) -> None:
    run(toys.pipeline(), str(workspace))
    workspaces.assert_same(done[0], workspace)


def test_ray_writes_the_same_bytes(done: tuple[Path, Result], workspace: Path, on_ray: Any) -> None:
    result = run(toys.pipeline(), str(workspace), engine=on_ray)
    assert result.ledger == done[1].ledger
    workspaces.assert_same(done[0], workspace)


def test_second_run_computes_nothing(done: tuple[Path, Result], copy: Path) -> None:
    before = workspaces.times(copy)
    result = run(toys.pipeline(), str(copy))
    assert all(result.reused.values()) and set(result.reused) == set(toys.STAGES)
    assert workspaces.times(copy) == before
    assert result.ledger == done[1].ledger


def test_new_shards_cost_new_shards(done: tuple[Path, Result], copy: Path) -> None:
    before = workspaces.times(copy)
    result = run(toys.pipeline(pool__rows=60), str(copy))
    after = workspaces.times(copy)
    assert {name: after[name] for name in before} == before
    for name in ("bright", "dear", "parity"):
        manifest = Manifest.load(open_storage(str(copy)), result.outputs[name].removeprefix(f"{copy}/"))
        assert manifest is not None and (result.counts[name].computed, manifest.rows) == (20, 60)
        facts = [file for file in set(after) - set(before) if file.startswith(f"facts/{toys.STAGES[name][0].op}")]
        assert len([file for file in facts if file.endswith("/000001.parquet")]) == 2
        assert not [file for file in facts if file.endswith("/000002.parquet")]
    assert sum(file.endswith(".tar") and file.startswith("pools") for file in set(after) - set(before)) == 2


def test_a_parameter_changes_what_is_downstream_only(done: tuple[Path, Result], copy: Path) -> None:
    before = workspaces.times(copy)
    result = run(toys.pipeline(even__each=4), str(copy))
    assert [name for name, reused in result.reused.items() if not reused] == ["even", "dataset", "page"]
    assert {name: time for name, time in workspaces.times(copy).items() if name in before} == before
    assert result.ledger["dataset"].copies == 12


def test_execution_parameters_do_not_enter_a_fingerprint(done: tuple[Path, Result], copy: Path) -> None:
    result = run(toys.pipeline(bright__threads=1, dear__threads=3), str(copy), options=Options(task_rows=7))
    assert all(result.reused.values())
    assert fingerprints(copy, result) == fingerprints(*done)


@pytest.mark.parametrize("task_rows", [1, 25])
def test_grouping_of_shards_changes_no_byte(done: tuple[Path, Result], workspace: Path, task_rows: int) -> None:
    run(toys.pipeline(dear__threads=1), str(workspace), options=Options(task_rows=task_rows))
    workspaces.assert_same(done[0], workspace)


def test_number_of_buckets_and_stretches_changes_no_dataset(
    done: tuple[Path, Result], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LEAST_ROWS", 8), ("STRETCH_ROWS", 4)):
        monkeypatch.setattr(shuffle, name, value)
    run(toys.pipeline(), str(workspace))
    assert len(list(workspace.glob("selections/*/*/rows/*"))) > 1
    assert workspaces.files(workspace, "datasets") == workspaces.files(done[0], "datasets")


def test_a_run_id_is_used_once(copy: Path) -> None:
    with pytest.raises(RunExistsError, match="--run-id first: this run exists"):
        run(toys.pipeline(), str(copy), run_id="first")


def test_a_run_id_names_a_folder(workspace: Path) -> None:
    with pytest.raises(RecipeError, match=r"^--run-id '\.\./x': expected letters, digits"):
        run(toys.chain(), str(workspace), run_id="../x")


@pytest.mark.long
def test_a_canary_goes_through_the_whole_dag(workspace: Path) -> None:
    pipeline = toys.pipeline(pool__rows=400, even__each=1)
    small = run(pipeline, str(workspace), options=Options(sample=0.05))
    assert set(small.ledger) == set(toys.STAGES)
    assert 10 <= small.ledger["pool"].before <= 20
    inside = run(pipeline, str(workspace), options=Options(sample=0.01))
    assert 1 <= inside.ledger["pool"].before <= 10
    whole = run(pipeline, str(workspace))
    assert whole.ledger["pool"].before == 400
    again = run(pipeline, str(workspace), options=Options(sample=0.05))
    assert all(again.reused.values())


def test_a_canary_of_rows_ends_at_a_stage(workspace: Path) -> None:
    pipeline = toys.pipeline(pool__rows=400, even__each=1)
    small = run(pipeline, str(workspace), options=Options(sample_rows=20, to="bright"))
    assert set(small.ledger) == {"pool", "bright"} and 8 <= small.ledger["pool"].before <= 34
    again = run(pipeline, str(workspace), options=Options(sample_rows=20, to="bright"))
    assert all(again.reused.values())
    whole = run(pipeline, str(workspace), options=Options(sample_rows=1000, to="bright"))
    assert whole.ledger["pool"].before == 400
    pipeline.add("some", SelectUniform(count=50), "bright")
    with pytest.raises(
        RecipeError,
        match="some: its count would shrink with a share of the pool, not with 20 rows; end ",
    ):
        run(pipeline, str(workspace), options=Options(sample_rows=20))


def test_a_canary_of_rows_needs_rows_that_can_be_counted() -> None:
    options, unknown = Options(sample_rows=20), [Portion({"n": n}) for n in range(4)]
    with pytest.raises(InputError, match="--sample 20rows: the rows of this source cannot be counted in advance"):
        options.share(unknown)
    assert options.share([Portion({}, rows=30), Portion({}, rows=10)]) == 0.5
    assert options.share([Portion({}, rows=3)]) == 1.0 and Options(sample=0.1).share(unknown) == 0.1


def test_branches_may_give_one_name_to_different_columns(workspace: Path) -> None:
    pipeline = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=20))
    for name, shift in (("left", 0.0), ("right", 1000.0)):
        pipeline.add(name, toys.Shifted(shift=shift), "pool")
    run(pipeline, str(workspace))
    for name in ("left", "right"):
        pipeline.add(f"{name}_mean", toys.Total(), name)
        pipeline.add(f"{name}_next", toys.Brighter(), name, total=f"{name}_mean")
    result = run(pipeline, str(workspace))
    means = [open_storage(result.outputs[f"{name}_mean"]).read("mean.npy") for name in ("left", "right")]
    assert means[0] != means[1]
    assert result.ledger["right_next"].after == 20
    contrast = {}
    for name in ("left", "right"):
        output = result.outputs[f"{name}_next"]
        shard = open_storage(output).read_table("shards.parquet").column("id")[0].as_py()
        table = facts.read(open_storage(output.split("/versions/")[0]), "", shard, 1)
        contrast[name] = table.column("contrast").to_numpy()
    assert abs(contrast["right"] - 1).max() < 0.2 < abs(contrast["left"] - 1).max() * 10


def test_two_stages_alike_are_built_once(workspace: Path) -> None:
    pipeline = toys.chain(toys.Brightness(), rows=10)
    pipeline.add("twin", toys.Brightness(), "pool")
    result = run(pipeline, str(workspace))
    assert result.outputs["twin"] == result.outputs["stage_1"]
    assert result.ledger["twin"] == result.ledger["stage_1"]


def test_unknown_engine_is_one_line(workspace: Path) -> None:
    with pytest.raises(RecipeError, match="--engine dask: expected local or ray"):
        run(toys.pipeline(), str(workspace), engine="dask")


def test_the_record_states_how_a_run_ended(workspace: Path) -> None:
    dark = toys.Brightness(), toys.Light(darkest=300.0), toys.Parity(), toys.Even(each=1)
    with pytest.raises(CurateError):
        run(toys.chain(*dark), str(workspace), run_id="bad")
    with pytest.raises(ZeroDivisionError):
        run(toys.chain(toys.Divided()), str(workspace), run_id="bug")
    storage = open_storage(str(workspace))
    failed, broken = RunRecord.load(storage, "bad"), RunRecord.load(storage, "bug")
    assert failed.state == broken.state == "failed"
    assert "each 1" in failed.result["error"] and broken.result["error"].startswith("ZeroDivisionError")
    assert storage.list("leases") == {}
