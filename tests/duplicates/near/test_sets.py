"""Components of graphs divided into cells, against SciPy's; long chains take few rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.group import MemoryGroup
from curate.duplicates.near import sets as duplicate_sets
from curate.duplicates.near.edges import both_ways, by_rank, cell_of
from curate.duplicates.near.hamming import components
from curate.duplicates.near.sets import settled, store_members
from tests.core.stored import Stored, members

CELLS = 3


def nodes(rows: int, seed: int = 0) -> np.ndarray:
    """Rows of few different sizes, whose keys are in another order than they."""
    rng = np.random.default_rng(seed)
    words = [~rng.integers(0, 3, rows).astype(np.uint64), np.zeros(rows), rng.permutation(rows), np.arange(rows)]
    return np.stack([word.astype(np.uint64) for word in words], axis=1)


def group(node: np.ndarray, a: np.ndarray, b: np.ndarray, loops: np.ndarray) -> MemoryGroup:
    """Edges a - b and loops, as `found_edges` leaves them."""
    cell, arrays = both_ways(node[a], node[b], CELLS)
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
def test_every_component_becomes_a_star_around_its_first_row(edges: list[tuple[int, int]], seed: int) -> None:
    rows, node = 30, nodes(30, seed)
    ends = np.array([edge for edge in edges if edge[0] != edge[1]], dtype=np.int64).reshape(-1, 2)
    stars, told = settled(group(node, ends[:, 0], ends[:, 1], np.unique(ends[:, 0])))
    labels = components(rows, [(ends[:, 0], ends[:, 1])])
    wanted = {}
    for row in by_rank(node):
        peers = [int(other) for other in by_rank(node) if labels[other] == labels[row]]
        if len(peers) > 1:
            wanted[int(node[row, 2])] = int(node[peers[0], 2])
    assert keepers(stars, rows) == wanted
    assert told["sets"] == len(set(wanted.values()))
    assert told["exact_duplicates"] + told["near_duplicates"] == len(wanted) - told["sets"]


@pytest.mark.parametrize("order", ["by rank", "shuffled"])
def test_a_long_chain_takes_few_rounds(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = nodes(4096)
    chain = by_rank(node) if order == "by rank" else np.random.default_rng(0).permutation(4096)
    rounds: list[int] = []
    monkeypatch.setattr(MemoryGroup, "progress", lambda self, done, text: rounds.append(1))
    stars, told = settled(group(node, chain[:-1], chain[1:], chain[:0]))
    assert told == {"sets": 1, "largest_set": 4096, "exact_duplicates": 0, "near_duplicates": 4095}
    assert len(rounds) <= 16, "12 halvings of the chain"
    assert sum(stars.rows) < 3 * 2 * 4095


def test_no_edges() -> None:
    none = np.empty(0, np.int64)
    stars, told = settled(group(nodes(3), none, none, none))
    assert keepers(stars, 3) == {} and set(told.values()) == {0}


def test_a_loop_marks_a_row_as_an_exact_copy_however_long_its_set_takes() -> None:
    node = nodes(64)
    chain = by_rank(node)
    stars, told = settled(group(node, chain[:-1], chain[1:], chain[[9]]))
    assert told["exact_duplicates"] == 1 and told["near_duplicates"] == 62
    assert duplicate_sets._stars(stars.parts[cell_of(node[chain[[9]]], CELLS)[0]]).exact.sum() == 1
