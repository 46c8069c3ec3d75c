"""Between a selection and its dataset: maps of selected rows, packs that reject, tasks that stay small."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import Storage, open_storage
from curate.engine.run import Result, run
from curate.engine.state import Options
from curate.engine.units import shuffle, step
from curate.engine.units.pack import build as pack_build
from curate.engine.workers.scheduler import Call
from tests.engine import toys, workspaces


def keys(result: Result) -> list[str]:
    return open_storage(result.outputs["dataset"]).read_table("index.parquet").column("key").to_pylist()


def behind(**bad: Any) -> Pipeline:
    """The toy pipeline with a Map of selected rows between selection and pack."""
    made = Pipeline()
    for name, (cls, inputs, ports) in toys.STAGES.items():
        if name in ("dataset", "page"):
            inputs = ("late",) if name == "dataset" else inputs
        if name == "dataset":
            made.add("late", toys.Bad(**bad), "even")
        made.add(name, cls(**({"namespace": "toys"} if name == "pool" else {})), inputs, **ports)
    return made.check()


@pytest.mark.parametrize("least", [2, 1 << 15])
def test_a_map_after_a_selection_gets_and_loses_selected_rows_only(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(shuffle, "LEAST_ROWS", least)
    whole = run(toys.pipeline(), str(workspace))
    pool = open_storage(whole.outputs["pool"].split("/pools/")[0])
    chosen = set(keys(whole))
    numbers = {}
    for path in sorted((workspace / "pools/toys/shards").glob("*.parquet")):
        for row in pool.read_table(f"pools/toys/shards/{path.name}").to_pylist():
            numbers[row["key"]] = int(row["caption"].split()[-1])
    victims = sorted(numbers[key] for key in chosen)[:2]
    others = sorted(number for key, number in numbers.items() if key not in chosen)[:2]
    result = run(behind(how="reject", numbers=(*victims, *others)), str(workspace))
    assert result.ledger["late"].before == 9 and result.ledger["late"].unusable == Counter(disliked=2)
    assert result.ledger["dataset"].before == 7
    assert sorted(keys(result)) == sorted(key for key in chosen if numbers[key] not in victims)


def test_a_pack_may_leave_samples_out(workspace: Path) -> None:
    """Each sample once, however many copies it would have had; the rest of the order stays."""
    stages = toys.Brightness(), toys.Parity(), toys.Even(each=20, multiplier=2)
    whole = run(named(*stages, toys.PlainPack()), str(workspace))
    result = run(named(*stages, toys.Choosy()), str(workspace))
    refused = result.ledger["dataset"].rejected
    assert set(refused) == {"odd"} and 0 < refused["odd"] < whole.ledger["dataset"].after
    assert result.ledger["dataset"].after == whole.ledger["dataset"].after - refused["odd"]
    index = open_storage(result.outputs["dataset"]).read_table("index.parquet")
    assert result.ledger["dataset"].copies == index.num_rows
    left = [key for key in keys(whole) if key in set(keys(result))]
    assert keys(result) == left
    apart = run(named(*stages, toys.Choosy(shard_rows=1)), str(workspace))  # shards of which nothing is left
    alone = open_storage(apart.outputs["dataset"]).read_table("index.parquet")
    assert alone.column_names == index.column_names
    assert alone.column("unit_of").to_pylist() == index.column("unit_of").to_pylist()


def named(*stages: toys.Stage) -> Pipeline:
    """A chain whose last stage is called `dataset`."""
    made = Pipeline().add("pool", toys.Numbers(namespace="toys"))
    names = ["pool", *(f"stage_{i}" for i in range(1, len(stages))), "dataset"]
    for before, name, stage in zip(names[:-1], names[1:], stages, strict=True):
        made.add(name, stage, before)
    return made.check()


def heaviest(workspace: Path, **changes: Any) -> dict[str, int]:
    """Bytes of the largest payload of each function in a run."""
    sizes: dict[str, int] = {}
    put = Call.put

    def weighed(call: Call, payload: Any) -> Any:
        name = call.function.__name__
        sizes[name] = max(len(pickle.dumps(payload)), sizes.get(name, 0))
        return put(call, payload)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Call, "put", weighed)
        for name, value in (("STRETCH_ROWS", 8), ("STRETCH_SHARDS", 4)):
            patch.setattr(shuffle, name, value)
        run(toys.pipeline(**changes), str(workspace), options=Options(task_rows=2))
    return sizes


STEPS = {"select_scatter", "select_plan", "select_pick", "select_gather"}
STEPS |= {"pack_scatter", "pack_order", "pack_shard", "pack_index", "pack_finish"}


@pytest.mark.long
def test_a_task_is_as_small_in_a_large_pool(workspace: Path) -> None:
    """Tasks carry the shards that they read, not the pool's list."""
    few, many = (heaviest(workspace, pool__rows=rows, pool__shard_rows=2) for rows in (20, 80))
    assert few.keys() >= STEPS
    assert {name for name in STEPS if many[name] > few[name] + 1000} == set()


class Counted:
    """Storage operations on paths with a word in them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        for name in ("read", "read_range", "read_table", "open", "publish", "list", "exists"):
            patch.setattr(Storage, name, self.noting(getattr(Storage, name)))

    def noting(self, method: Any) -> Any:
        def noted(storage: Storage, path: str, *arguments: Any, **options: Any) -> Any:
            self.paths.append(path)
            return method(storage, path, *arguments, **options)

        return noted

    def of(self, *words: str) -> int:
        return sum(any(word in path for word in words) for path in self.paths)


@pytest.mark.long
def test_selection_and_pack_take_eight_operations_a_shard(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools so large that buckets grow with the rows. A pack's members and tars grow with the samples: not counted."""
    for name, value in (("LEAST_ROWS", 8), ("MOST_ROWS", 8), ("STRETCH_ROWS", 1)):
        monkeypatch.setattr(shuffle, name, value)
    monkeypatch.setattr(pack_build, "RANGE_ROWS", 8)
    for shards in (8, 32):
        made = Pipeline().add("pool", toys.Numbers(namespace=f"toys{shards}", rows=shards * 8, shard_rows=8))
        made.add("bright", toys.Brightness(), "pool").add("parity", toys.Parity(units=8 * shards), "bright")
        made.add("even", toys.Even(each=1), "parity")
        made.add("dataset", toys.PlainPack(shard_rows=1000), "even")
        with pytest.MonkeyPatch.context() as patch:
            counted = Counted(patch)
            run(made.check(), str(workspace))
        assert counted.of("selections/") <= 8 * shards + 30, shards
        assert counted.of("work/ranks/", "work/order/") <= 8 * shards + 30, shards


@pytest.mark.parametrize("folder", ["selections", "datasets"])
def test_an_interrupted_build_reuses_its_files(workspace: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setattr(step, "tidy", lambda *_: None)
    for name, value in (("LEAST_ROWS", 8), ("STRETCH_ROWS", 4)):
        monkeypatch.setattr(shuffle, name, value)
    whole = run(toys.pipeline(), str(workspace))
    before, kept = workspaces.times(workspace), workspaces.files(workspace, folder)
    for manifest in workspace.glob(f"{folder}/*/*/manifest.json"):
        manifest.unlink()
    again = run(toys.pipeline(), str(workspace))
    after = workspaces.times(workspace)
    work = {name for name in before if name.startswith(folder) and ("work/" in name or name.endswith(".tar"))}
    rewritten = {name for name in work if after[name] != before[name]}
    assert len(work) > 5 and {name for name in rewritten if "work/index/" not in name} == set()
    assert workspaces.files(workspace, folder) == kept and again.ledger == whole.ledger


def test_copies_are_spread_over_the_order(workspace: Path) -> None:
    """Ranks are of (key, item, copy): the copies of one sample are spread over the dataset like strangers."""
    stages = toys.Brightness(), toys.Parity(units=1), toys.Even(each=80, multiplier=2), toys.PlainPack(shard_rows=80)
    order = keys(run(named(*stages), str(workspace)))
    assert Counter(order).most_common(1)[0][1] == 2 and len(order) == 80
    places: dict[str, list[int]] = {}
    for place, key in enumerate(order):
        places.setdefault(key, []).append(place)
    gaps = [b - a for a, b in places.values()]
    assert 20 < sum(gaps) / len(gaps) < 34  # 81 / 3 expected of two uniform places


def test_another_seed_is_another_order_of_the_same(workspace: Path) -> None:
    one, two = (run(toys.pipeline(dataset__seed=seed), str(workspace)) for seed in (0, 1))
    assert sorted(keys(one)) == sorted(keys(two)) and keys(one) != keys(two)


def test_near_equal_shards(workspace: Path) -> None:
    result = run(toys.pipeline(even__each=5, dataset__shard_rows=4), str(workspace))
    sizes = open_storage(result.outputs["dataset"]).read("sizes.txt").decode().split()[1::2]
    assert sizes == ["3", "4", "4", "4"]
    assert len(workspaces.files(workspace, "datasets")) == 4 + 2  # and the sizes and the index
