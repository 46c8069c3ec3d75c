from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.report.survey.scope import scope_of
from curate.report.survey.survey import LevelSizes, survey
from curate.report.survey.tree import choose, fanouts, gather, largest_and_tail
from tests.report.memory_view import small_pool


def levels_of(leaves: list[tuple[int, int]]) -> list[LevelSizes]:
    """Two levels from the (size, parent) of each leaf; half of every leaf is selected."""
    size = np.array([size for size, _ in leaves], dtype=np.int64)
    parent = np.array([parent for _, parent in leaves], dtype=np.int64)
    fine = LevelSizes(size, size // 2, parent)
    coarse = LevelSizes(np.bincount(parent, size).astype(np.int64), np.bincount(parent, size // 2).astype(np.int64))
    return [fine, coarse]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), min_size=1, max_size=60), st.integers(1, 8))
def test_shown_and_hidden_clusters_add_up_at_every_node(leaves, fanout):
    root = choose(levels_of(leaves), [fanout, fanout], seed=0)
    for node in root.nodes():
        if node.level > 1:
            assert sum(child.before for child in node.children) + node.hidden_before == node.before
            assert len(node.children) <= fanout
        assert node.before > 0 or node is root
    assert root.before == sum(size for size, _ in leaves)


def test_children_belong_to_their_parent():
    root = choose(levels_of([(5, 0), (4, 1), (3, 0), (2, 1)]), [2, 2], seed=0)
    assert [(node.id, [child.id for child in node.children]) for node in root.children] == [(0, [0, 2]), (1, [1, 3])]


@pytest.mark.parametrize("shard_rows", [7, 100, 10_000])
def test_gather_finds_the_closest_rows_that_reached_the_selection(shard_rows):
    view = small_pool()
    view.shard_rows = shard_rows
    scope = scope_of(view, None, None)
    found = survey(view, scope, seed=0, rejects=2, kept=2)
    root = choose(found.levels, [3, 3], seed=0)
    gathered = gather(view, scope, root, [view.rows[1]["key"]], per_leaf=3, seed=0)
    assert set(gathered.leaf_rows) == {leaf.id for leaf in root.leaves()}
    for leaf, rows in gathered.leaf_rows.items():
        reached = sorted(row["centroid_distance"] for row in view.rows if row["cluster_1"] == leaf)
        assert [row["centroid_distance"] for row in rows] == pytest.approx(reached[:3])
    assert set(gathered.keepers) == {view.rows[1]["key"]}
    assert set(gathered.captions) == {(node.level, node.id) for node in root.nodes() if node.level < 3}


@pytest.mark.parametrize(
    ("caption", "label", "expected"),
    [
        ("a star", "shapes", "a star shapes"),
        ("a star", None, "a star"),
        (None, "shapes", "shapes"),
        (None, None, "x.png"),
    ],
)
def test_clusters_are_named_after_captions_and_labels_or_file_names(caption, label, expected):
    scope = scope_of(small_pool(1), None, "meta.category")
    row = {"source_id": "x.png", "caption": caption, "meta": json.dumps({"category": label})}
    assert scope.naming_texts(
        pa.Table.from_pylist([row], schema=pa.schema([(n, pa.string()) for n in row]))
    ).to_pylist() == [expected]


def test_sizes_count_rows_before_the_selection_and_copies_after_it():
    view = small_pool()
    found = survey(view, scope_of(view, None, None), seed=0, rejects=2, kept=2)
    reached = [row for row in view.rows if row["cluster_1"] is not None]
    for level, name in zip(found.levels, ("cluster_1", "cluster_2"), strict=True):
        before, after = level.compared()
        ids, copies = [row[name] for row in reached], [row["copies"] for row in reached]
        assert before.tolist() == np.bincount(ids).tolist()
        assert after.tolist() == np.bincount(ids, copies).tolist()
    assert found.copies == sum(row["copies"] for row in view.rows)
    assert sum(found.rejected.values()) + found.kept == found.rows == len(view.rows)
    assert all(len(rows) <= 2 for rows in found.reject_rows.values())


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 20), st.integers(0, 9))
def test_largest_and_tail_shows_each_once_and_the_largest_first(values, count, seed):
    sizes = np.array(values, dtype=np.int64)
    ranks = np.random.default_rng(seed).permutation(len(values)).astype(np.uint64)
    largest, tail = largest_and_tail(sizes, ranks, count)
    shown = largest + tail
    assert len(set(shown)) == len(shown) == min(count, len(values))
    assert [values[place] for place in shown] == sorted((values[place] for place in shown), reverse=True)
    rest = [size for place, size in enumerate(values) if place not in largest]
    assert all(values[place] >= max(rest, default=0) for place in largest)


@pytest.mark.parametrize(("levels", "expected"), [(1, [84]), (2, [12, 7]), (3, [12, 3, 3]), (4, [12, 2, 2, 2])])
def test_fanouts_give_about_the_requested_leaves(levels, expected):
    assert fanouts(levels, top=12, leaves=84) == expected
