"""Contents of a workspace, bytes that gc would free, and datasets that a pin keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from curate.core.errors import InputError, RecipeError
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import Storage, open_storage
from curate.engine.record import claims, gc, pins
from curate.engine.record.runs import RunRecord
from curate.engine.record.usage import datasets, usage
from curate.engine.run import run
from tests.engine import toys


@pytest.fixture
def storage(workspace: Path) -> Storage:
    """Two runs: another threshold, another dataset."""
    run(toys.pipeline(), str(workspace), run_id="one")
    run(toys.pipeline(light__darkest=125.0), str(workspace), run_id="two")
    return open_storage(str(workspace))


def test_every_byte_is_counted_once(storage: Storage) -> None:
    lines = usage(storage)
    sizes = [path.stat().st_size for path in Path(storage.root).rglob("*") if path.is_file()]
    assert sum(line.bytes for line in lines) == sum(sizes) and sum(line.files for line in lines) == len(sizes)
    assert len({(line.noun, line.name, line.stages) for line in lines}) == len(lines)
    assert sum(line.garbage for line in lines) == 0


def test_lines_name_op_and_stage(storage: Storage) -> None:
    stages = {(line.noun, line.name): line.stages for line in usage(storage)}
    ops = {name: cls.op for name, (cls, _, _) in toys.STAGES.items()}
    for name in ("bright", "dear", "parity", "contrast"):
        assert stages["facts", ops[name]] == (name,)
    for name in ("total", "page"):
        assert stages["artifacts", ops[name]] == (name,)
    assert stages["selections", ops["even"]] == ("even",) and stages["datasets", "toys"] == ("dataset",)
    assert stages["pools", "toys"] == ("pool",) and stages["records", ""] == ()


def test_what_gc_would_free_is_what_it_frees(storage: Storage) -> None:
    storage.remove("runs/two")
    before = usage(storage)
    free = sum(line.garbage for line in before)
    garbage, runs = gc.unreachable(storage)
    assert free == sum(garbage.values()) > 0
    assert {line.noun for line in before if line.garbage} >= {"artifacts", "datasets", "masks", "selections"}
    with claims.exclusive(storage):
        gc.collect(storage, garbage, runs)
    after = usage(storage)
    assert sum(line.garbage for line in after) == 0
    assert sum(line.bytes for line in before) - sum(line.bytes for line in after) == free


def test_datasets_are_listed_with_their_runs_and_pins(storage: Storage) -> None:
    run(toys.pipeline(), storage.url, run_id="three")
    first, second = datasets(storage)
    outputs = {name: RunRecord.load(storage, name).outputs["dataset"] for name in ("one", "two")}
    assert (first.base, second.base) == (outputs["one"]["base"], outputs["two"]["base"])
    assert (first.name, first.runs, second.runs) == ("toys", ("one", "three"), ("two",))
    for dataset in (first, second):
        tars = list(Path(storage.path(dataset.base)).glob("*.tar"))
        assert (dataset.rows, dataset.tars) == (9, len(tars))
        assert dataset.bytes == sum(tar.stat().st_size for tar in tars) and dataset.pins == ()
    pins.create(storage, "good", RunRecord.load(storage, "two"), "dataset")
    assert [dataset.pins for dataset in datasets(storage)] == [(), ("good",)]


def test_a_dataset_that_is_not_complete_is_not_listed(storage: Storage) -> None:
    first, second = datasets(storage)
    storage.remove(f"{first.base}/manifest.json")
    assert datasets(storage) == [second]


def test_gc_keeps_a_pinned_dataset(storage: Storage) -> None:
    pin = pins.create(storage, "good", RunRecord.load(storage, "one"), "dataset")
    assert (pin.kind, pin.op) == (pins.DATASET, toys.PlainPack.op)
    kept = set(storage.list(pin.base))
    with claims.exclusive(storage):
        gc.collect(storage, *gc.unreachable(storage, keep=0, drop=["one"]))
    assert [dataset.pins for dataset in datasets(storage)] == [("good",)]
    assert set(storage.list(pin.base)) == kept and not storage.list("selections")
    pins.remove(storage, "good")
    with claims.exclusive(storage):
        gc.collect(storage, *gc.unreachable(storage))
    assert not storage.list("datasets")


def test_no_port_takes_a_dataset(storage: Storage) -> None:
    pins.create(storage, "good", RunRecord.load(storage, "one"), "dataset")
    made = Pipeline().add("pool", toys.Numbers(namespace="toys")).add("bright", toys.Brightness(), "pool")
    made.add("contrast", toys.Brighter(), "bright", total="pin:good")
    with pytest.raises(RecipeError, match=r"total: pin:good is a dataset \(of toy.pack\), expected a toy_total"):
        run(made, storage.url)


def test_a_stage_without_an_artifact_or_a_pool_cannot_be_pinned(storage: Storage) -> None:
    told = r"pin x: 'even' built no artifact or dataset in run one; expected one of total, dataset$"
    with pytest.raises(InputError, match=told):
        pins.create(storage, "x", RunRecord.load(storage, "one"), "even")
