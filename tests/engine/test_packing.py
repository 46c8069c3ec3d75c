"""Between a selection and its dataset: maps of selected rows, packs that reject, tasks that stay small."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from curate.core.pipeline import Pipeline
from curate.core.storage import open_storage
from curate.engine import shuffle
from curate.engine.backends import HOW
from curate.engine.backends.local import LocalBackend
from curate.engine.context import Options
from curate.engine.run import Result, run
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
def test_a_map_behind_a_selection_sees_and_loses_selected_rows_only(
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


class Weighed(LocalBackend):
    """Notes the size of what would travel."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, int] = {}

    def map(self, function: Any, payloads: Any, resources: Any, how: Any = HOW) -> Any:
        for payload in payloads:
            size = len(pickle.dumps(payload))
            self.sizes[function.__name__] = max(size, self.sizes.get(function.__name__, 0))
        return super().map(function, payloads, resources, how)


def test_a_task_is_as_small_in_a_large_pool(workspace: Path) -> None:
    """Only the search for repeated keys carries the list of the pool's shards."""
    sizes = []
    for rows in (20, 200):
        backend = Weighed()
        pipeline = toys.pipeline(pool__rows=rows, pool__shard_rows=2)
        run(pipeline, str(workspace), engine=backend, options=Options(task_rows=2))
        sizes.append(backend.sizes)
    grown = {name: sizes[1][name] - size for name, size in sizes[0].items()}
    assert {name for name, more in grown.items() if more > 3000} == {"find_repeats", "reduce_finish"}


def test_copies_lie_apart_in_the_order(workspace: Path) -> None:
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
    assert len(workspaces.files(workspace, "datasets")) == 4 + 3
