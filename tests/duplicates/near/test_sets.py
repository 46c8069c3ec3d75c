"""Components of graphs divided into cells, compared with SciPy's; long chains take few rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.group import MemoryGroup
from curate.duplicates.near import sets as duplicate_sets
from curate.duplicates.near.edges import cell_of, edges_by_cell, rank_order
from curate.duplicates.near.hamming import components
from curate.duplicates.near.sets import component_stars, store_members
from tests.core.stored import Stored, members

CELLS = 3


def nodes(rows: int, seed: int = 0) -> np.ndarray:
    """Nodes (rows, 4) with three different sizes; the order of their keys differs from the order of the rows."""
    rng = np.random.default_rng(seed)
    words = [~rng.integers(0, 3, rows).astype(np.uint64), np.zeros(rows), rng.permutation(rows), np.arange(rows)]
    return np.stack([word.astype(np.uint64) for word in words], axis=1)


def group(node: np.ndarray, a: np.ndarray, b: np.ndarray, loops: np.ndarray) -> MemoryGroup:
    """Edges a - b and loops, in the form that `find_edges` returns."""
    cell, arrays = edges_by_cell(node[a], node[b], CELLS)
    cell = np.concatenate([cell, cell_of(node[loops], CELLS)])
    joined = {name: np.concatenate([ends, node[loops]]) for name, ends in arrays.items()}
    return MemoryGroup([{name: ends[cell == c] for name, ends in joined.items()} for c in range(CELLS)])


def keepers(stars: MemoryGroup, rows: int) -> dict[int, int]:
    whole = MemoryGroup([{"key": np.empty((rows, 2))}])
    whole._stored = stars._stored
    store_members(stars, whole, "members")
    return {int(line["key"], 16): int(line["keeper"], 16) for line in members(Stored({}, stars))}


EDGES = st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=60)


@given(EDGES, st.integers(0, 9))
def test_every_component_becomes_a_star_around_its_keeper(edges: list[tuple[int, int]], seed: int) -> None:
    rows, node = 30, nodes(30, seed)
    ends = np.array([edge for edge in edges if edge[0] != edge[1]], dtype=np.int64).reshape(-1, 2)
    stars, counts = component_stars(group(node, ends[:, 0], ends[:, 1], np.unique(ends[:, 0])))
    labels = components(rows, [(ends[:, 0], ends[:, 1])])
    expected = {}
    for row in rank_order(node):
        peers = [int(other) for other in rank_order(node) if labels[other] == labels[row]]
        if len(peers) > 1:
            expected[int(node[row, 2])] = int(node[peers[0], 2])
    assert keepers(stars, rows) == expected
    assert counts["sets"] == len(set(expected.values()))
    assert counts["exact_duplicates"] + counts["near_duplicates"] == len(expected) - counts["sets"]


@pytest.mark.parametrize("order", ["by rank", "shuffled"])
def test_a_long_chain_takes_few_rounds(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = nodes(4096)
    chain = rank_order(node) if order == "by rank" else np.random.default_rng(0).permutation(4096)
    rounds: list[int] = []
    monkeypatch.setattr(MemoryGroup, "progress", lambda self, done, text: rounds.append(1))
    stars, counts = component_stars(group(node, chain[:-1], chain[1:], chain[:0]))
    assert counts == {"sets": 1, "largest_set": 4096, "exact_duplicates": 0, "near_duplicates": 4095}
    assert len(rounds) <= 16, "expected about log2(4096) = 12 rounds"
    assert sum(stars.rows) < 3 * 2 * 4095


def test_no_edges() -> None:
    none = np.empty(0, np.int64)
    stars, counts = component_stars(group(nodes(3), none, none, none))
    assert keepers(stars, 3) == {} and set(counts.values()) == {0}


def test_a_loop_marks_an_exact_copy_after_any_number_of_rounds() -> None:
    node = nodes(64)
    chain = rank_order(node)
    stars, counts = component_stars(group(node, chain[:-1], chain[1:], chain[[9]]))
    assert counts["exact_duplicates"] == 1 and counts["near_duplicates"] == 62
    assert duplicate_sets._adjacency(stars.parts[cell_of(node[chain[[9]]], CELLS)[0]]).exact.sum() == 1
