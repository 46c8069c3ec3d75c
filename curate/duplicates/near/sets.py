"""Duplicate sets out of edges: who belongs together, who is kept, and why the others are duplicates.

Components are found by cells of rows, in rounds (Rastogi et al. 2013, "Finding connected components in map-reduce in
logarithmic rounds", Hash-to-Min, without messages to itself): a row sends all its neighbours the least of them and
itself. Rows are in order of rank, so the least row of a component is its keeper, and in the end every other row has it
as its only neighbour. No process holds more than the edges of one cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curate.core.group import Arrays, Group, Part
from curate.core.row_lookup import as_bytes, part_of, starts_of, store
from curate.duplicates.near.edges import Nodes, both_ways, cell_of

KEEPER, EXACT, NEAR = 0, 1, 2
Shared = Mapping[str, Any]


def settled(edges: Group) -> tuple[Group, dict[str, int]]:
    """Edges as `found_edges` makes them -> the same components as stars around their keepers; and counts."""
    cells, rounds = len(edges.rows), 0
    while True:
        looks = list(edges.each(_look))
        told = {name: sum(look[name] for look in looks) for name in ("sets", "exact_duplicates", "near_duplicates")}
        if not sum(look["restless"] for look in looks):
            return edges, {"largest_set": max(look["largest_set"] for look in looks), **told}
        rounds += 1
        edges.progress(min(0.9, 0.5 + 0.05 * rounds), f"sets are joined, round {rounds}")
        edges = edges.partition(f"joined-{rounds}", _join, cells, count=cells)


def store_members(stars: Group, group: Group, name: str) -> None:
    """Each part of the group stores under `name` its rows that are in sets, sorted by `key` (n, 16 bytes), with
    `keeper` (n, 16 bytes) and `kind` (n,)."""
    parts = len(group.rows)
    store(stars.partition("members-by-part", _to_parts, parts, starts=starts_of(group)), name)


# --- steps, which see the edges of some rows --------------------------------------------------------------------------


class _Stars(NamedTuple):
    """The neighbours of the rows of a cell."""

    node: Nodes
    """(u, 4): each row once, in order of keys."""
    least: Nodes
    """(u, 4): the least of the row and its neighbours, by rank."""
    mine: NDArray[np.int64]
    """(m,): place in `node` of the row of each edge that is not a loop."""
    other: Nodes
    """(m, 4): its neighbours; the least neighbour of a row comes first."""
    exact: NDArray[np.bool_]
    """(u,): the row has a loop."""

    @property
    def degree(self) -> NDArray[np.int64]:
        return np.bincount(self.mine, minlength=len(self.node))

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Rows (u,) that are less than all their neighbours."""
        return (self.node[:, 1:3] == self.least[:, 1:3]).all(axis=1)


def _stars(arrays: Arrays) -> _Stars:
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
    return _Stars(own, np.where(_less(other[rows], own)[:, None], other[rows], own), place[~loop], other[~loop], exact)


def _changes(words: Nodes) -> NDArray[np.bool_]:
    """Rows that are another key than the row before; the first is."""
    changed = np.ones(len(words), dtype=bool)
    changed[1:] = (words[1:, 1:3] != words[:-1, 1:3]).any(axis=1)
    return changed


def _less(a: Nodes, b: Nodes) -> NDArray[np.bool_]:
    """Whether a ranks before b, row by row."""
    less = a[:, 2] < b[:, 2]
    for word in (1, 0):
        less = (a[:, word] < b[:, word]) | ((a[:, word] == b[:, word]) & less)
    return less


def _look(part: Part, shared: Shared) -> dict[str, int]:
    """Counts over the rows of a cell; `restless` are rows that know of more than their keeper."""
    stars = _stars(part.arrays)
    kept, degree = stars.kept, stars.degree
    return {
        "restless": int((~kept & (degree > 1)).sum()),
        "sets": int(kept.sum()),
        "largest_set": int(degree[kept].max(initial=-1)) + 1,
        "exact_duplicates": int((~kept & stars.exact).sum()),
        "near_duplicates": int((~kept & ~stars.exact).sum()),
    }


def _join(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    """Each row tells its neighbours of the least of them all; loops stay."""
    stars = _stars(part.arrays)
    least = stars.least[stars.mine]
    news = (stars.other[:, 1:3] != least[:, 1:3]).any(axis=1)
    cell, arrays = both_ways(stars.other[news], least[news], shared["count"])
    loops = stars.node[stars.exact]
    joined = {name: np.concatenate([ends, loops]) for name, ends in arrays.items()}
    return np.concatenate([cell, cell_of(loops, shared["count"])]), joined


def _to_parts(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    stars = _stars(part.arrays)
    kind = np.where(stars.kept, KEEPER, np.where(stars.exact, EXACT, NEAR)).astype(np.int8)
    arrays = {"key": as_bytes(stars.node[:, 1:3]), "keeper": as_bytes(stars.least[:, 1:3]), "kind": kind}
    return part_of(shared["starts"], stars.node[:, 3]), arrays
