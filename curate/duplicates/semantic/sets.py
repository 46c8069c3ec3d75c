"""Greedy duplicate sets over rows in cells: each cell alone, then the pairs that borders have split.

A round: (1) each cell drops its open rows that lie within eps of a kept row it sees, and thins the others greedily to
candidates; (2) candidates that lie within eps of each other, or of a kept row, across a border are sent to the driver;
(3) it goes through them by priority and drops the later of two; the others are kept permanently; (4) rows whose keeper
was dropped are open again. The first open candidate is always decided permanently, so rounds end. Data decide the
cells, so the result does not depend on workers or on the order of shards.

The driver holds a byte a row, and the pairs that it dropped; it sends states to workers as bits.
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
    """Dropped rows (m,), the kept row of each (m,), and their cosine (m,); rows are numbered as in the group."""

    row: Ints
    keeper: Ints
    similarity: NDArray[np.float32]
    told: dict[str, int]
    """rounds; visits: rows beside their own that cells looked at; fallen: candidates dropped across a border."""


def semantic_sets(
    group: Group, centroids_KD: NDArray[np.float32], eps: float, keep: str, neighbours: int | None, seed: int
) -> SemanticSets:
    """group: parts of `key` (n, 2) words and `vector` (n, d) halves."""
    starts = np.concatenate([[0], np.cumsum(group.rows)]).astype(np.int64)
    group.progress(0.0, "rows go to the cells that must see them")
    cells = group.partition(
        "cells", _to_cells, len(centroids_KD),
        starts=starts, centroids=centroids_KD, eps=eps, keep=keep, neighbours=neighbours, seed=seed,
    )  # fmt: skip
    count = int(starts[-1])
    found = group.restored() or _begin(count, sum(cells.rows) - count)
    state = found["state"] = np.array(found["state"])
    while (open_rows := int((state == OPEN).sum())) or not found["rounds"]:
        group.progress(
            0.3 + 0.7 * (1 - open_rows / max(1, count)), f"round {found['rounds'] + 1}, {open_rows:,} rows open"
        )
        _round(cells, found, eps)
        group.save(found)
    told = {name: int(found[name]) for name in ("rounds", "visits", "fallen")}
    return SemanticSets(found["row"], found["keeper"], found["similarity"], told)


def _begin(rows: int, visits: int) -> dict[str, Any]:
    nobody = {"row": np.empty(0, np.int64), "keeper": np.empty(0, np.int64), "similarity": np.empty(0, np.float32)}
    return {"state": np.zeros(rows, np.uint8), "rounds": 0, "visits": visits, "fallen": 0, **nobody}


def _round(cells: Group, found: dict[str, Any], eps: float) -> None:
    """One round over all cells; changes `found`."""
    state: NDArray[np.uint8] = found["state"]
    dropped = _joined(_dropped(cells.each(_thin, open=_bits(state == OPEN), kept=_bits(state == KEPT), eps=eps), state))
    edges = _joined(cells.each(_conflicts, candidate=_bits(state == CANDIDATE), kept=_bits(state == KEPT), eps=eps))
    fallen = _fall(edges, state)
    state[fallen["row"]] = DROPPED
    orphan = state[dropped["keeper"]] == DROPPED
    state[dropped["row"][orphan]] = OPEN
    state[state == CANDIDATE] = KEPT
    for name in ("row", "keeper", "similarity"):
        found[name] = np.concatenate([found[name], dropped[name][~orphan], fallen[name]])
    found["rounds"] += 1
    found["fallen"] += len(fallen["row"])


def _dropped(parts: Iterator[dict[str, NDArray[Any]]], state: NDArray[np.uint8]) -> Iterator[dict[str, NDArray[Any]]]:
    """The dropped rows among the results of `_thin`; updates `state` with all results, a cell at a time."""
    for part in parts:
        dropped = part["row"] != part["keeper"]
        state[part["row"]] = np.where(dropped, DROPPED, CANDIDATE)
        yield {name: values[dropped] for name, values in part.items()}


def _fall(edges: dict[str, NDArray[Any]], state: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """Edges (row, row_2) with their priorities -> the candidates that fall, each for the first standing row it meets.

    Kept rows stand; candidates in order of priority stand unless one that stands is next to them.
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


# --- steps, which see rows --------------------------------------------------------------------------------------------


def _to_cells(part: Part, shared: Shared) -> tuple[Ints, Arrays]:
    """Every row to the cell of its nearest centroid, and as a visitor to those where it may have near-duplicates."""
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
    """Lowest first. The bits of floats that are not negative are in the order of the floats."""
    if keep == "random":
        return ranks_of_words(seed, key)
    bits = np.ascontiguousarray(distance, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return bits if keep == "closest" else np.uint64(2**32 - 1) - bits


def _thin(part: Part, shared: Shared) -> dict[str, NDArray[Any]]:
    """Open rows of the cell -> each with the kept row that drops it, or the candidate that it is or follows."""
    held = part.arrays
    is_open = np.asarray(held["home"]) & _has(shared["open"], held["row"])
    mine, kept = _in_order(held, is_open), _in_order(held, _has(shared["kept"], held["row"]) & is_open.any())
    vectors, finals = Vectors(held["vector"], rows=mine), Vectors(held["vector"], rows=kept)
    keeper = first_within(vectors, finals, shared["eps"])
    to = np.where(keeper >= 0, kept[keeper] if len(kept) else 0, -1)
    rest = np.flatnonzero(keeper < 0)
    to[rest] = mine[rest[greedy(vectors.only(mine[rest]), shared["eps"])]]
    return {
        "row": np.asarray(held["row"])[mine],
        "keeper": np.asarray(held["row"])[to],
        "similarity": _similarity(held, mine, to),
    }


def _conflicts(part: Part, shared: Shared) -> dict[str, NDArray[Any]]:
    """Pairs within eps of a row of the cell and a visitor, one of them a candidate, the other that or kept."""
    held = part.arrays
    home = np.asarray(held["home"])
    candidate, kept = _has(shared["candidate"], held["row"]), _has(shared["kept"], held["row"])
    first, second = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for ours, theirs in ((candidate, candidate | kept), (kept, candidate)):
        a, b = np.flatnonzero(home & ours), np.flatnonzero(~home & theirs)
        if len(a) and len(b):
            for x, y in pairs_within(Vectors(held["vector"], rows=a), Vectors(held["vector"], rows=b), shared["eps"]):
                first.append(a[x])
                second.append(b[y])
    a, b = np.concatenate(first), np.concatenate(second)
    names = ("row", "priority", "key")
    ends = {name: np.asarray(held[name])[a] for name in names} | {f"{n}_2": np.asarray(held[n])[b] for n in names}
    return {**ends, "similarity": _similarity(held, a, b)}


def _similarity(held: Arrays, a: Ints, b: Ints, at_once: int = 4096) -> NDArray[np.float32]:
    cosine = np.empty(len(a), dtype=np.float32)
    for start in range(0, len(a), at_once):
        block = slice(start, start + at_once)
        cosine[block] = cosines(unit_rows(held["vector"][a[block]]), unit_rows(held["vector"][b[block]]))
    return np.minimum(cosine, np.float32(1))


def _in_order(held: Arrays, mask: NDArray[np.bool_]) -> Ints:
    """Places of the masked rows by priority, then key."""
    places = np.flatnonzero(mask)
    key = np.asarray(held["key"])[places]
    return places[np.lexsort((key[:, 1], key[:, 0], np.asarray(held["priority"])[places]))]


def _bits(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.packbits(mask)


def _has(bits: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each of these rows' bit is set."""
    rows = np.asarray(rows)
    return (bits[rows >> 3] >> (7 - (rows & 7)).astype(np.uint8) & 1).astype(bool)


def _joined(parts: Any) -> dict[str, NDArray[Any]]:
    """What the steps returned, as one."""
    found = list(parts)
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}
