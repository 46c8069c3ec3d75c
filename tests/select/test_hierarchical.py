"""Changes of a balanced selection when the pool grows, its shards change, or the target grows."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.core.errors import CurateError
from curate.core.hashing import make_key
from curate.core.vectors import to_binary
from curate.select.hierarchical import SelectHierarchical

Rows = tuple[list[str], np.ndarray]  # keys, leaf of each


@st.composite
def pools(draw: st.DrawFn) -> tuple[dict[str, Any], Rows, int]:
    """A tree of 2 or 3 levels, rows in its leaves (some empty, some large), and a target."""
    leaves, middle = draw(st.integers(2, 10)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tree: dict[str, Any] = {"parents_1": rng.integers(0, middle, leaves)}
    clusters = [leaves, middle]
    if draw(st.booleans()):
        clusters.append(draw(st.integers(1, 3)))
        tree["parents_2"] = rng.integers(0, clusters[-1], middle)
    tree["levels"] = {"levels": [{"clusters": number} for number in clusters]}
    weights = rng.pareto(0.7, leaves) * (rng.random(leaves) < 0.8) + 1e-9
    rows = rng.choice(leaves, draw(st.integers(1, 120)), p=weights / weights.sum())
    keys = [make_key("pool", str(number)) for number in range(len(rows))]
    return tree, (keys, rows), draw(st.integers(1, len(rows)))


STRATEGIES = ["random", "cover"]


def vectors_of(keys: list[str]) -> np.ndarray:
    """Directions, some of them equal, and some rows without one."""
    vectors = np.array([[int(key[place], 16) % 4 - 1.5 for place in range(3)] for key in keys], dtype=np.float32)
    vectors[[int(key[4], 16) == 0 for key in keys]] = 0
    return vectors


def chosen(
    tree: dict[str, Any],
    rows: Rows,
    target: int,
    buckets: int = 2,
    strategy: str = "random",
    level: int = 1,
    even: float = 1.0,
) -> set[str]:
    """Keys that the stage takes, with units distributed over buckets as in the engine."""
    keys, leaves = rows
    stage = SelectHierarchical(target=target, strategy=strategy, level=level, even=even, seed=7)
    stage.setup({"tree": tree})
    distance = np.array([int(key[:4], 16) % 5 for key in keys], dtype=np.float32)
    embedding = to_binary(vectors_of(keys))[0]
    columns = {"cluster_1": leaves, "cluster_2": tree["parents_1"][leaves], "embedding": embedding}
    table = pa.table({"key": keys, "centroid_distance": distance, **columns})
    lines = stage.deal(table)
    units = lines.column("unit").to_numpy()
    counts = np.bincount(units)
    quotas = stage.plan(counts)
    taken: set[str] = set()
    for bucket in range(buckets):
        mine = np.flatnonzero(units % buckets == bucket)
        copies = stage.pick(lines.take(mine), counts, quotas)["copies"]
        taken |= {keys[row] for row in mine[copies > 0]}
    assert len(taken) == target
    return taken


@settings(max_examples=150)
@given(
    pools(),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
    st.sampled_from(STRATEGIES),
    st.sampled_from([1, 2]),
    st.sampled_from([1.0, 0.5, 0.0]),
)
def test_neither_order_nor_buckets_matter(
    pool: tuple[dict[str, Any], Rows, int], buckets: int, shuffle: int, strategy: str, level: int, even: float
) -> None:
    tree, (keys, leaves), target = pool
    order = np.random.default_rng(shuffle).permutation(len(keys))
    moved = ([keys[row] for row in order], leaves[order])
    expected = chosen(tree, (keys, leaves), target, 2, strategy, level, even)
    assert chosen(tree, moved, target, buckets, strategy, level, even) == expected


@settings(max_examples=300)
@given(pools(), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_new_row_costs_at_most_one_of_those_chosen(
    pool: tuple[dict[str, Any], Rows, int], new: int, seed: int
) -> None:
    tree, (keys, leaves), target = pool
    more = np.random.default_rng(seed).choice(len(tree["parents_1"]), new)
    grown = (keys + [make_key("new", str(number)) for number in range(new)], np.concatenate([leaves, more]))
    before, after = (chosen(tree, rows, target) for rows in ((keys, leaves), grown))
    assert len(before - after) <= new


@settings(max_examples=150)
@given(pools(), st.integers(1, 20), st.sampled_from(STRATEGIES), st.sampled_from([1, 2]))
def test_a_larger_sample_holds_the_smaller_one(
    pool: tuple[dict[str, Any], Rows, int], more: int, strategy: str, level: int
) -> None:
    tree, rows, target = pool
    larger = min(target + more, len(rows[0]))
    smaller = chosen(tree, rows, target, strategy=strategy, level=level)
    assert smaller <= chosen(tree, rows, larger, strategy=strategy, level=level)


@pytest.mark.parametrize("strategy", ["cover", "fast_cover"])
def test_a_cover_takes_rows_of_every_group_in_a_cluster(strategy: str) -> None:
    """By chance 8 of 100 rows miss the last group, of 5 rows, more often than not."""
    group = np.repeat(np.arange(4), [60, 25, 10, 5])
    keys = [make_key("pool", str(number)) for number in range(len(group))]
    embedding = to_binary(np.eye(4, dtype=np.float32)[group])[0]
    stage = SelectHierarchical(target=8, strategy=strategy)
    stage.setup({"tree": {"levels": {"levels": [{"clusters": 1}]}}})
    lines = stage.deal(pa.table({"key": keys, "cluster_1": np.zeros(len(group), np.int64), "embedding": embedding}))
    counts = np.array([len(group)])
    copies = stage.pick(lines, counts, stage.plan(counts))["copies"]
    assert copies.sum() == 8 and set(group[copies > 0]) == set(range(4))


def test_a_fast_cover_sends_sketches_and_takes_rows_without_a_direction_last() -> None:
    vectors = np.random.default_rng(0).standard_normal((40, 96)).astype(np.float32)
    vectors[:5] = np.nan
    keys = [make_key("pool", str(number)) for number in range(40)]
    stage = SelectHierarchical(target=35, strategy="fast_cover")
    stage.setup({"tree": {"levels": {"levels": [{"clusters": 1}]}}})
    lines = stage.deal(pa.table({"key": keys, "cluster_1": np.zeros(40, np.int64), "embedding": to_binary(vectors)[0]}))
    assert set(lines.column_names) == {"key", "unit", "sketch"} and lines.column("sketch").type == pa.binary(128)
    counts = np.array([40])
    assert stage.pick(lines.slice(0, 40), counts, stage.plan(counts))["copies"].tolist() == [0] * 5 + [1] * 35
    with pytest.raises(ValidationError, match="fast_cover covers directions only"):
        SelectHierarchical(target=1, strategy="fast_cover", unit_norm=False)


def test_a_level_that_the_tree_does_not_have_is_one_line() -> None:
    stage = SelectHierarchical(target=1, level=3)
    tree = {"parents_1": np.zeros(4, np.int64), "levels": {"levels": [{"clusters": 4}, {"clusters": 1}]}}
    with pytest.raises(CurateError, match=r"^select.hierarchical.level: 3, but its `tree` has 2; lower it$"):
        stage.setup({"tree": tree})
