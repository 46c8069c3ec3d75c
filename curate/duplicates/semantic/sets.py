"""Greedy duplicate sets over rows in cells: first within each cell, then across cell borders.

A round has four steps:
1. Each cell drops its open rows within eps of a kept row, its own or a visitor, and thins the rest greedily to
   candidates.
2. Pairs of candidates, or of a candidate and a kept row, within eps across a border are sent to the driver.
3. The driver resolves these pairs in order of priority: of each pair it drops the later one. The remaining candidates
   are kept permanently.
4. Rows whose keeper was dropped become open again.
Each round decides its first candidate permanently, so the rounds end. Cells depend on the data alone, so the result
does not depend on the workers or on the order of shards.

The driver holds one byte per row, and the dropped rows; it sends states to workers as bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curate.core.group import Arrays, Group, Part
from curate.core.hashing import ranks_of_words
from curate.duplicates.semantic.kernels import cells_to_visit, cosines, first_within, greedy, pairs_within, unit_rows
from curate.kernels.nearest.search import nearest
from curate.kernels.vectors import Vectors

OPEN, CANDIDATE, KEPT, DROPPED = 0, 1, 2, 3
ROWS_AT_ONCE = 1 << 14
Shared = Mapping[str, Any]
Ints = NDArray[np.int64]


class SemanticSets(NamedTuple):
    """Dropped rows (m,), their keepers (m,) and the cosine of each pair (m,). Rows are numbered as in the group."""

    row: Ints
    keeper: Ints
    similarity: NDArray[np.float32]
    counts: dict[str, int]
    """rounds; visits: rows sent to cells other than their own; fallen: candidates dropped across a border."""


def semantic_sets(
    group: Group, centroids_KD: NDArray[np.float32], eps: float, keep: str, neighbours: int | None, seed: int
) -> SemanticSets:
    """Parts of the group have `key` (n, 2) words and `vector` (n, d) float16."""
    starts = np.concatenate([[0], np.cumsum(group.rows)]).astype(np.int64)
    group.progress(0.0, "sending rows to their own and neighbouring cells")
    cells = group.partition(
        "cells", _to_cells, len(centroids_KD),
        starts=starts, centroids=centroids_KD, eps=eps, keep=keep, neighbours=neighbours, seed=seed,
    )  # fmt: skip
    count = int(starts[-1])
    found = group.restored() or _no_sets(count, sum(cells.rows) - count)
    state = found["state"] = np.array(found["state"])
    while (open_rows := int((state == OPEN).sum())) or not found["rounds"]:
        group.progress(
            0.3 + 0.7 * (1 - open_rows / max(1, count)), f"round {found['rounds'] + 1}, {open_rows:,} rows open"
        )
        _round(cells, found, eps)
        group.save(found)
    counts = {name: int(found[name]) for name in ("rounds", "visits", "fallen")}
    return SemanticSets(found["row"], found["keeper"], found["similarity"], counts)


def _no_sets(rows: int, visits: int) -> dict[str, Any]:
    dropped = {"row": np.empty(0, np.int64), "keeper": np.empty(0, np.int64), "similarity": np.empty(0, np.float32)}
    return {"state": np.zeros(rows, np.uint8), "rounds": 0, "visits": visits, "fallen": 0, **dropped}


def _round(cells: Group, found: dict[str, Any], eps: float) -> None:
    """Run one round over all cells; updates `found` in place."""
    state: NDArray[np.uint8] = found["state"]
    thinned = cells.each(_thin, open=np.packbits(state == OPEN), kept=np.packbits(state == KEPT), eps=eps)
    dropped = _concatenated(_apply_thinning(thinned, state))
    candidate, kept = np.packbits(state == CANDIDATE), np.packbits(state == KEPT)
    edges = _concatenated(cells.each(_conflicts, candidate=candidate, kept=kept, eps=eps))
    fallen = _resolve_conflicts(edges, state)
    state[fallen["row"]] = DROPPED
    orphaned = state[dropped["keeper"]] == DROPPED
    state[dropped["row"][orphaned]] = OPEN
    state[state == CANDIDATE] = KEPT
    for name in ("row", "keeper", "similarity"):
        found[name] = np.concatenate([found[name], dropped[name][~orphaned], fallen[name]])
    found["rounds"] += 1
    found["fallen"] += len(fallen["row"])


def _apply_thinning(
    parts: Iterator[dict[str, NDArray[Any]]], state: NDArray[np.uint8]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the dropped rows of each result of `_thin`, and update `state` in place."""
    for part in parts:
        dropped = part["row"] != part["keeper"]
        state[part["row"]] = np.where(dropped, DROPPED, CANDIDATE)
        yield {name: values[dropped] for name, values in part.items()}


def _resolve_conflicts(edges: dict[str, NDArray[Any]], state: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """Edges (row, row_2) with priorities -> the candidates to drop, each with its keeper and their cosine.

    Kept rows come first, then candidates in order of priority. A candidate is dropped if it has an edge to an earlier
    row that is not dropped; the first such row is its keeper.
    """
    ends = ("row", "priority", "key"), ("row_2", "priority_2", "key_2")
    row, priority, key = (np.concatenate([edges[a], edges[b]]) for a, b in zip(*ends, strict=True))
    other = np.concatenate([edges["row_2"], edges["row"]])
    similarity = np.concatenate([edges["similarity"]] * 2)
    nodes, first, node = np.unique(row, return_index=True, return_inverse=True)
    order = np.lexsort((key[first, 1], key[first, 0], priority[first], state[nodes] != KEPT))
    sequence = np.argsort(node, kind="stable")
    begins = np.searchsorted(node[sequence], np.arange(len(nodes) + 1))
    place = np.searchsorted(nodes, other)
    winner = np.full(len(nodes), -1, dtype=np.int64)
    at_cosine = np.zeros(len(nodes), dtype=np.float32)
    for one in order:
        if winner[one] >= 0:
            continue
        edge = sequence[begins[one] : begins[one + 1]]
        losers = place[edge]
        free = (winner[losers] < 0) & (state[nodes[losers]] == CANDIDATE)
        winner[losers[free]], at_cosine[losers[free]] = one, similarity[edge[free]]
    lost = winner >= 0
    return {"row": nodes[lost], "keeper": nodes[winner[lost]], "similarity": at_cosine[lost]}


# --- steps on rows ----------------------------------------------------------------------------------------------------


def _to_cells(part: Part, shared: Shared) -> tuple[Ints, Arrays]:
    """Send each row to the cell of its nearest centroid, and as a visitor to cells that may hold near-duplicates."""
    centroids, home = shared["centroids"], np.empty(part.rows, dtype=np.int64)
    distance = np.empty(part.rows, dtype=np.float32)
    rows, cells = [np.arange(part.rows)], [home]
    for start in range(0, part.rows, ROWS_AT_ONCE):
        block = slice(start, start + ROWS_AT_ONCE)
        vectors = unit_rows(part.arrays["vector"][block])
        home[block], distance[block] = nearest(vectors, centroids, part.threads)
        for row, cell in cells_to_visit(vectors, centroids, home[block], shared["eps"], shared["neighbours"]):
            rows.append(row + start)
            cells.append(cell)
    row = np.concatenate(rows)
    key = np.asarray(part.arrays["key"])
    priority = _priority(shared["keep"], distance, key, shared["seed"])
    arrays = {
        "row": shared["starts"][part.index] + row,
        "home": np.arange(len(row)) < part.rows,
        "priority": priority[row],
        "key": key[row],
        "vector": np.asarray(part.arrays["vector"])[row],
    }
    return np.concatenate(cells), arrays


def _priority(keep: str, distance: NDArray[np.float32], key: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Priority (n,), the lowest first. The bits of non-negative floats sort like the floats."""
    if keep == "random":
        return ranks_of_words(seed, key)
    bits = np.ascontiguousarray(distance, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return bits if keep == "closest" else np.uint64(2**32 - 1) - bits


def _thin(part: Part, shared: Shared) -> dict[str, NDArray[Any]]:
    """Open rows of the cell, each with its keeper: a kept row, another candidate, or itself if it is a candidate."""
    arrays = part.arrays
    is_open = np.asarray(arrays["home"]) & _bits_of(shared["open"], arrays["row"])
    open_rows, kept = (
        _in_order(arrays, is_open),
        _in_order(arrays, _bits_of(shared["kept"], arrays["row"]) & is_open.any()),
    )
    vectors, keepers = Vectors(arrays["vector"], rows=open_rows), Vectors(arrays["vector"], rows=kept)
    keeper = first_within(vectors, keepers, shared["eps"])
    to = np.where(keeper >= 0, kept[keeper] if len(kept) else 0, -1)
    rest = np.flatnonzero(keeper < 0)
    to[rest] = open_rows[rest[greedy(vectors.only(open_rows[rest]), shared["eps"])]]
    return {
        "row": np.asarray(arrays["row"])[open_rows],
        "keeper": np.asarray(arrays["row"])[to],
        "similarity": _similarity(arrays, open_rows, to),
    }


def _conflicts(part: Part, shared: Shared) -> dict[str, NDArray[Any]]:
    """Pairs within eps of a row of the cell and a visitor: two candidates, or a candidate and a kept row."""
    arrays = part.arrays
    home = np.asarray(arrays["home"])
    candidate, kept = _bits_of(shared["candidate"], arrays["row"]), _bits_of(shared["kept"], arrays["row"])
    first, second = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for of_home, of_visitors in ((candidate, candidate | kept), (kept, candidate)):
        a, b = np.flatnonzero(home & of_home), np.flatnonzero(~home & of_visitors)
        if len(a) and len(b):
            for x, y in pairs_within(
                Vectors(arrays["vector"], rows=a), Vectors(arrays["vector"], rows=b), shared["eps"]
            ):
                first.append(a[x])
                second.append(b[y])
    a, b = np.concatenate(first), np.concatenate(second)
    names = ("row", "priority", "key")
    ends = {name: np.asarray(arrays[name])[a] for name in names} | {f"{n}_2": np.asarray(arrays[n])[b] for n in names}
    return {**ends, "similarity": _similarity(arrays, a, b)}


def _similarity(arrays: Arrays, a: Ints, b: Ints, at_once: int = 4096) -> NDArray[np.float32]:
    cosine = np.empty(len(a), dtype=np.float32)
    for start in range(0, len(a), at_once):
        block = slice(start, start + at_once)
        cosine[block] = cosines(unit_rows(arrays["vector"][a[block]]), unit_rows(arrays["vector"][b[block]]))
    return np.minimum(cosine, np.float32(1))


def _in_order(arrays: Arrays, mask: NDArray[np.bool_]) -> Ints:
    """Indices of the masked rows, by priority, then key."""
    places = np.flatnonzero(mask)
    key = np.asarray(arrays["key"])[places]
    return places[np.lexsort((key[:, 1], key[:, 0], np.asarray(arrays["priority"])[places]))]


def _bits_of(bits: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the bit of each row is set."""
    rows = np.asarray(rows)
    return (bits[rows >> 3] >> (7 - (rows & 7)).astype(np.uint8) & 1).astype(bool)


def _concatenated(parts: Any) -> dict[str, NDArray[Any]]:
    """The arrays of all results, concatenated by name."""
    found = list(parts)
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}
