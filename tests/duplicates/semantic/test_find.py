"""`duplicates.semantic` on groups in memory."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import CurateError, InputError
from curate.core.group import MemoryGroup
from curate.core.hashing import key_words, make_key, ranks
from curate.core.vectors import from_binary, to_binary
from curate.duplicates.semantic import sets as semantic_sets
from curate.duplicates.semantic.find import SemanticDuplicates
from curate.duplicates.semantic.kernels import cells_to_visit, cosines, greedy, unit_rows
from curate.kernels.nearest.search import nearest
from tests.core.stored import Stored, members
from tests.duplicates.semantic.test_kernels import clumps, exact

DIM = 6


def pool(vectors: np.ndarray) -> pa.Table:
    column, norms = to_binary(vectors)
    keys = [make_key("test", str(row)) for row in range(len(vectors))]
    return pa.table({"key": pa.array(keys, pa.string()), "embedding": column, "embedding_norm": norms})


def tree(*levels: np.ndarray) -> dict[str, Any]:
    levels_of = {"levels": {"levels": [{"clusters": len(level)} for level in levels], "dim": levels[0].shape[1]}}
    return levels_of | {f"centroids_{t}": level for t, level in enumerate(levels, 1)}


def found(table: pa.Table, fitted_tree: dict[str, Any], shards: int = 3, **parameters: Any) -> Stored:
    stage = SemanticDuplicates(**parameters)
    stage.setup({"tree": fitted_tree})
    cuts = np.linspace(0, table.num_rows, shards + 1).astype(int)
    group = MemoryGroup([stage.load(table.slice(a, b - a)) for a, b in pairwise(cuts)], threads=2)
    return Stored(stage.fit(group), group)


def by_row(table: pa.Table, artifact: Stored) -> dict[int, tuple[int, float]]:
    """Dropped row -> (keeper's row, similarity)."""
    place = {key: row for row, key in enumerate(table.column("key").to_pylist())}
    rows = members(artifact)
    keepers = {row["key"] for row in rows if row["kind"] == "keeper"}
    assert all(row["keeper"] == row["key"] for row in rows if row["kind"] == "keeper")
    dropped = {place[r["key"]]: (place[r["keeper"]], r["similarity"]) for r in rows if r["kind"] == "semantic"}
    assert {keeper for keeper, _ in dropped.values()} == {place[key] for key in keepers}
    assert not {keeper for keeper, _ in dropped.values()} & set(dropped)
    summary = artifact["summary"]
    assert (summary["semantic_duplicates"], summary["sets"]) == (len(dropped), len(keepers))
    return dropped


@given(
    st.integers(0, 10_000),
    st.integers(0, 60),
    st.integers(1, 8),
    st.floats(1e-3, 0.5),
    st.sampled_from(["farthest", "closest", "random"]),
    st.sampled_from([None, 0, 1, 3]),
)
def test_dropped_rows_are_near_their_keeper_and_kept_rows_are_apart(
    seed: int, rows: int, cells: int, eps: float, keep: str, neighbours: int | None
) -> None:
    table = pool(clumps(seed, rows, DIM, around=4, spread=0.3))
    centroids = clumps(seed + 1, cells, DIM, around=4, spread=0.3)
    artifact = found(table, tree(centroids), eps=eps, keep=keep, neighbours=neighbours)
    dropped = by_row(table, artifact)
    vectors = unit_rows(from_binary(table.column("embedding")))
    near = exact(vectors, vectors, eps)
    for row, (keeper, similarity) in dropped.items():
        assert near[row, keeper]
        assert similarity == pytest.approx(cosines(vectors[[row]], vectors[[keeper]])[0], abs=1e-6)
    home = nearest(vectors, centroids)[0]
    seen = home[:, None] == home
    for row, cell in cells_to_visit(vectors, centroids, home, eps, neighbours):
        for i, c in zip(row, cell, strict=True):
            seen[i] |= home == c
    compared = seen | seen.T if neighbours is not None else np.ones_like(seen)
    kept = np.array([row not in dropped for row in range(rows)], dtype=bool)
    both = kept[:, None] & kept & ~np.eye(rows, dtype=bool)
    assert not (near & compared & both).any(), "two kept rows that were compared lie within eps"
    order = np.random.default_rng(seed).permutation(rows)
    permuted = found(table.take(order), tree(centroids), shards=1, eps=eps, keep=keep, neighbours=neighbours)
    assert members(permuted) == members(artifact) and permuted["summary"] == artifact["summary"]


@pytest.mark.parametrize("keep", ["farthest", "closest", "random"])
def test_one_cell_gives_the_greedy_result(keep: str) -> None:
    table = pool(clumps(5, 300, DIM))
    centroid = clumps(9, 1, DIM)
    artifact = found(table, tree(centroid), eps=0.02, keep=keep, seed=4)
    vectors = unit_rows(from_binary(table.column("embedding")))
    keys = table.column("key").to_pylist()
    distance = nearest(vectors, centroid)[1]
    first = {"farthest": -distance, "closest": distance, "random": ranks(4, keys)}[keep]
    words = key_words(keys)
    order = np.lexsort((words[:, 1], words[:, 0], first))
    keeper = order[greedy(vectors[order], 0.02)]
    expected = {int(row): int(k) for row, k in zip(order, keeper, strict=True) if row != k}
    assert {row: k for row, (k, _) in by_row(table, artifact).items()} == expected
    assert artifact["summary"]["rounds"] == 1 and artifact["summary"]["fallen"] == 0


def test_a_pair_across_a_cell_border() -> None:
    """Two rows on opposite sides of a cell border are found if they visit a neighbouring cell."""
    table = pool(np.array([[1, 0.01], [1, -0.01], [0.2, 1], [0.2, -1]]))
    cells = tree(unit_rows(np.array([[1, 1], [1, -1]])))
    assert by_row(table, found(table, cells, eps=0.01, neighbours=0)) == {}
    for neighbours in (1, None):
        artifact = found(table, cells, eps=0.01, neighbours=neighbours)
        assert len(by_row(table, artifact)) == 1
        assert artifact["summary"]["visits"] == 2 and artifact["summary"]["fallen"] == 1


def test_rows_whose_keeper_was_dropped_are_open_again() -> None:
    """On a circle with eps of 2 degrees, b drops c in its cell. Then a drops b, but c is too far from a: c is kept."""
    degrees, centres = np.deg2rad([0.5, -0.2, -1.9]), np.deg2rad([0.4, -0.5])  # a | b, c
    table = pool(np.stack([np.sin(degrees), np.cos(degrees)], axis=1))
    fitted_tree = tree(np.stack([np.sin(centres), np.cos(centres)], axis=1).astype(np.float32))
    eps = float(1 - np.cos(np.deg2rad(2)))
    alone = found(table, fitted_tree, eps=eps, keep="closest", neighbours=0)
    assert {row: keeper for row, (keeper, _) in by_row(table, alone).items()} == {2: 1}
    artifact = found(table, fitted_tree, eps=eps, keep="closest", neighbours=1)
    assert {row: keeper for row, (keeper, _) in by_row(table, artifact).items()} == {1: 0}
    assert artifact["summary"]["rounds"] == 2


def test_ten_thousand_copies_form_one_set() -> None:
    rows = np.concatenate([np.tile(clumps(1, 1, DIM), (10_000, 1)), clumps(2, 500, DIM)])
    table = pool(rows)
    artifact = found(table, tree(clumps(3, 5, DIM)), eps=1e-3, neighbours=None)
    assert artifact["summary"]["largest_set"] >= 10_000


def test_the_level_is_the_coarsest_with_small_enough_cells() -> None:
    stage = SemanticDuplicates(cell_rows=10)
    stage.setup({"tree": tree(clumps(0, 9, DIM), clumps(0, 4, DIM), clumps(0, 2, DIM))})
    assert [stage.level_for(rows) for rows in (0, 20, 21, 40, 41, 90, 91)] == [3, 3, 2, 2, 1, 1, 1]


def test_leaves_in_many_files_cannot_be_cells() -> None:
    fitted_tree = tree(clumps(0, 9, DIM), clumps(0, 4, DIM), clumps(0, 2, DIM))
    del fitted_tree["centroids_1"]
    stage = SemanticDuplicates(cell_rows=10)
    stage.setup({"tree": fitted_tree})
    assert [stage.level_for(rows) for rows in (20, 21, 91)] == [3, 2, 2]
    with pytest.raises(CurateError, match=r"level: 1, but the leaves .* write a level from 2 to 3"):
        found(pool(clumps(0, 3, DIM)), fitted_tree, level=1)


def test_no_rows() -> None:
    artifact = found(pool(np.empty((0, DIM))), tree(clumps(0, 3, DIM)))
    assert members(artifact) == [] and artifact["summary"]["rows"] == 0


def test_errors_of_level_dimension_and_vectors() -> None:
    fitted_tree = tree(clumps(0, 3, DIM))
    with pytest.raises(CurateError, match=r"level: 2, but its `tree` has 1 levels; write 1 to 1"):
        found(pool(clumps(0, 3, DIM)), fitted_tree, level=2)
    with pytest.raises(CurateError, match=r"7 dimensions, but its `tree` has 6"):
        found(pool(clumps(0, 3, 7)), fitted_tree)
    with pytest.raises(InputError, match=r"1 rows of 'embedding' are null, zero, NaN or infinite"):
        found(pool(np.concatenate([clumps(0, 3, DIM), np.zeros((1, DIM))])), fitted_tree)
    assert pickle.loads(pickle.dumps(SemanticDuplicates(eps=0.1))) == SemanticDuplicates(eps=0.1)


def test_it_resumes_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    table, centroids = pool(clumps(8, 400, DIM, spread=0.3)), clumps(9, 12, DIM)
    stage = SemanticDuplicates(eps=0.05, neighbours=2)
    stage.setup({"tree": tree(centroids)})
    once = MemoryGroup([stage.load(table)])
    whole = Stored(stage.fit(once), once)
    assert whole["summary"]["rounds"] > 1
    group, real, rounds = MemoryGroup([stage.load(table)]), semantic_sets._round, iter(range(1))

    def stopped(*given: Any) -> None:
        if next(rounds, None) is None:
            raise KeyboardInterrupt
        real(*given)

    monkeypatch.setattr(semantic_sets, "_round", stopped)
    with pytest.raises(KeyboardInterrupt):
        stage.fit(group)
    monkeypatch.setattr(semantic_sets, "_round", real)
    resumed = Stored(stage.fit(group), group)
    assert members(resumed) == members(whole) and resumed["summary"] == whole["summary"]
