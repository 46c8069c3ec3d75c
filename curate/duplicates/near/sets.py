"""Turns edges into duplicate sets: the members of each set, its keeper, and the kind of every other member.

Connected components are computed in rounds over cells of rows with Hash-to-Min (Rastogi et al. 2013, "Finding connected
components in map-reduce in logarithmic rounds", without messages to the sender). In each round a row sends all its
neighbours the minimum of its neighbourhood, which includes the row. Rows are ordered by rank, so the minimum of a
component is the keeper of the set. At the end every other row has the keeper as its only neighbour. No process holds
more than the edges of one cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curate.core.group import Arrays, Group, Part
from curate.core.row_lookup import as_bytes, part_of, starts_of, store
from curate.duplicates.near.edges import Nodes, cell_of, edges_by_cell

KEEPER, EXACT, NEAR = 0, 1, 2
Shared = Mapping[str, Any]


def component_stars(edges: Group) -> tuple[Group, dict[str, int]]:
    """Edges from `find_edges` -> (stars with the same components, each centred on the keeper; counts)."""
    cells, rounds = len(edges.rows), 0
    while True:
        cell_counts = list(edges.each(_count))
        counts = {name: sum(c[name] for c in cell_counts) for name in ("sets", "exact_duplicates", "near_duplicates")}
        if not sum(c["unfinished"] for c in cell_counts):
            return edges, {"largest_set": max(c["largest_set"] for c in cell_counts), **counts}
        rounds += 1
        edges.progress(min(0.9, 0.5 + 0.05 * rounds), f"joining sets, round {rounds}")
        edges = edges.partition(f"joined-{rounds}", _send_minimum, cells, count=cells)


def store_members(stars: Group, group: Group, name: str) -> None:
    """Store, per part of the group and under `name`, the rows that are in sets: `key` (n, 16 bytes, sorted), `keeper`
    (n, 16 bytes) and `kind` (n,)."""
    parts = len(group.rows)
    store(stars.partition("members-by-part", _to_parts, parts, starts=starts_of(group)), name)


# --- steps on the edges of a cell -------------------------------------------------------------------------------------


class _Adjacency(NamedTuple):
    """Adjacency lists of the rows of a cell."""

    node: Nodes
    """(u, 4): each row once, sorted by key."""
    minimum: Nodes
    """(u, 4): minimum, by rank, of the row and its neighbours."""
    row: NDArray[np.int64]
    """(m,): index into `node` of the row of each edge that is not a loop."""
    other: Nodes
    """(m, 4): neighbour of each edge's row; the first-ranking neighbour of a row comes first."""
    exact: NDArray[np.bool_]
    """(u,): whether the row has a loop, that is, exactly equals a row that ranks before it."""

    @property
    def degree(self) -> NDArray[np.int64]:
        return np.bincount(self.row, minlength=len(self.node))

    @property
    def is_minimum(self) -> NDArray[np.bool_]:
        """(u,): whether the row ranks before all its neighbours."""
        return (self.node[:, 1:3] == self.minimum[:, 1:3]).all(axis=1)


def _adjacency(arrays: Arrays) -> _Adjacency:
    node, other = np.asarray(arrays["node"]), np.asarray(arrays["other"])
    order = np.lexsort((other[:, 2], other[:, 1], other[:, 0], node[:, 2], node[:, 1]))
    node, other = node[order], other[order]
    new = _changes(node)
    once = new | _changes(other)
    node, other, new = node[once], other[once], new[once]
    place, rows = np.cumsum(new) - 1, np.flatnonzero(new)
    loop = (node[:, 1:3] == other[:, 1:3]).all(axis=1)
    exact = np.zeros(len(rows), dtype=bool)
    exact[place[loop]] = True
    own = node[rows]
    return _Adjacency(
        own, np.where(_less(other[rows], own)[:, None], other[rows], own), place[~loop], other[~loop], exact
    )


def _changes(words: Nodes) -> NDArray[np.bool_]:
    """Whether the key of each row differs from the key of the row before; True for the first row."""
    changed = np.ones(len(words), dtype=bool)
    changed[1:] = (words[1:, 1:3] != words[:-1, 1:3]).any(axis=1)
    return changed


def _less(a: Nodes, b: Nodes) -> NDArray[np.bool_]:
    """(m,): whether a ranks before b, row by row."""
    less = a[:, 2] < b[:, 2]
    for word in (1, 0):
        less = (a[:, word] < b[:, word]) | ((a[:, word] == b[:, word]) & less)
    return less


def _count(part: Part, shared: Shared) -> dict[str, int]:
    """Counts over the rows of a cell; `unfinished` counts rows with neighbours other than their keeper."""
    adjacency = _adjacency(part.arrays)
    kept, degree = adjacency.is_minimum, adjacency.degree
    return {
        "unfinished": int((~kept & (degree > 1)).sum()),
        "sets": int(kept.sum()),
        "largest_set": int(degree[kept].max(initial=-1)) + 1,
        "exact_duplicates": int((~kept & adjacency.exact).sum()),
        "near_duplicates": int((~kept & ~adjacency.exact).sum()),
    }


def _send_minimum(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    """Hash-to-Min: send each row's minimum to all its neighbours. Loops stay."""
    adjacency = _adjacency(part.arrays)
    minimum = adjacency.minimum[adjacency.row]
    changed = (adjacency.other[:, 1:3] != minimum[:, 1:3]).any(axis=1)
    cell, arrays = edges_by_cell(adjacency.other[changed], minimum[changed], shared["count"])
    loops = adjacency.node[adjacency.exact]
    joined = {name: np.concatenate([ends, loops]) for name, ends in arrays.items()}
    return np.concatenate([cell, cell_of(loops, shared["count"])]), joined


def _to_parts(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    adjacency = _adjacency(part.arrays)
    kind = np.where(adjacency.is_minimum, KEEPER, np.where(adjacency.exact, EXACT, NEAR)).astype(np.int8)
    arrays = {"key": as_bytes(adjacency.node[:, 1:3]), "keeper": as_bytes(adjacency.minimum[:, 1:3]), "kind": kind}
    return part_of(shared["starts"], adjacency.node[:, 3]), arrays
