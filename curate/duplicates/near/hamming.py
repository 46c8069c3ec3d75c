"""Connected components of 256-bit hashes within a few bits of each other: exact, without comparing all pairs.

Multi-index hashing (Norouzi et al. 2012, section 3): split the bits into d + 1 bands; two hashes at distance d or less
agree in at least one band, so only hashes that share the value of a band are compared. If very many hashes share a
value, as in the heavy head of a web pool, the bits outside the band split them further. Groups that are still crowded
are searched by growing one component at a time. If all members are near-duplicates, this takes linear time, and it
never lists all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

Edges = tuple[NDArray[np.int64], NDArray[np.int64]]
BITS = 256
_CROWD, _LEADERS = 64, 8
_DEPTH = 2
_PAIRS_AT_ONCE = 1 << 20


def components(count: int, edges: Iterator[Edges] | list[Edges]) -> NDArray[np.int64]:
    """Component label (count,) of each node, given undirected edges."""
    pairs = list(edges)
    first = np.concatenate([np.empty(0, np.int64), *(pair[0] for pair in pairs)])
    second = np.concatenate([np.empty(0, np.int64), *(pair[1] for pair in pairs)])
    graph = coo_array((np.ones(len(first), dtype=np.int8), (first, second)), shape=(count, count))
    return connected_components(graph, directed=False)[1].astype(np.int64)


def group_edges(groups_N: NDArray[np.int64]) -> Edges:
    """Edges that join the nodes of each group in a chain; negative numbers mean no group."""
    order = np.argsort(groups_N, kind="stable")
    order = order[np.searchsorted(groups_N[order], 0) :]
    same = groups_N[order[1:]] == groups_N[order[:-1]]
    return order[:-1][same], order[1:][same]


def codes_of(words_NK: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Codes (n,) from 0, equal for equal rows. Faster than `np.unique` over rows."""
    order = np.lexsort(words_NK.T)
    changed = (words_NK[order[1:]] != words_NK[order[:-1]]).any(axis=1)
    codes = np.zeros(len(words_NK), dtype=np.int64)
    codes[order[1:]] = np.cumsum(changed)
    return codes


def spanning(edges: Iterator[Edges] | list[Edges]) -> Edges:
    """Spanning forest: the fewest edges with the same components."""
    pairs = list(edges)
    first = np.concatenate([np.empty(0, np.int64), *(pair[0] for pair in pairs)])
    second = np.concatenate([np.empty(0, np.int64), *(pair[1] for pair in pairs)])
    nodes, places = np.unique(np.concatenate([first, second]), return_inverse=True)
    chained = group_edges(components(len(nodes), [(places[: len(first)], places[len(first) :])]))
    return nodes[chained[0]], nodes[chained[1]]


def band_values(hashes_NB: NDArray[np.uint8], band: int, max_distance: int) -> NDArray[np.uint64]:
    """Word (n,) per hash for one of its max_distance + 1 bands: equal values give equal words."""
    packed = _extract(hashes_NB, np.arange(band, BITS, max_distance + 1))
    words = np.ascontiguousarray(np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8)))).view(np.uint64)
    folded = np.zeros(len(words), dtype=np.uint64)
    for word in words.T:
        folded = (folded ^ word) * np.uint64(0x9E3779B97F4A7C15)  # wraps
        folded ^= folded >> np.uint64(32)
    return folded


def band_edges(hashes_NB: NDArray[np.uint8], band: int, max_distance: int) -> Iterator[Edges]:
    """hashes (n, 32) -> edges between hashes that agree in the band and are within `max_distance`. Band 0 also joins
    equal hashes. Over all bands, the components are those of the graph 'distance <= max_distance'."""
    inverse = codes_of(np.ascontiguousarray(hashes_NB).view(np.uint64).reshape(-1, BITS // 64))
    if band == 0:
        yield group_edges(inverse)
    member = np.zeros(inverse.max(initial=-1) + 1, dtype=np.int64)
    member[inverse] = np.arange(len(inverse))
    unique = np.ascontiguousarray(hashes_NB[member])
    words_N4 = unique.view(np.uint64).reshape(-1, BITS // 64)
    bits = np.arange(BITS)
    for first, second in _search_band(unique, words_N4, np.arange(len(unique)), bits, band, max_distance, 0):
        yield member[first], member[second]


def band_pairs(hashes_NB: NDArray[np.uint8], band: int, max_distance: int) -> Iterator[Edges]:
    """All pairs of hashes that agree in the band and are within `max_distance`; those of equal hashes in band 0 only.
    If over _CROWD hashes agree, as those of a title that many videos share, the first _LEADERS are compared with all:
    the time and the pairs are linear in their number."""
    words_N4 = np.ascontiguousarray(hashes_NB).view(np.uint64).reshape(-1, BITS // 64)
    if band == 0:
        yield from _pairs(words_N4, *_buckets(hashes_NB), 0)
    in_band = _buckets(_extract(hashes_NB, np.arange(band, BITS, max_distance + 1)))
    for first, second in _pairs(words_N4, *in_band, max_distance):
        differ = (words_N4[first] != words_N4[second]).any(axis=1)
        yield first[differ], second[differ]


def _pairs(
    words_N4: NDArray[np.uint64], ordered: NDArray[np.int64], starts: NDArray[np.int64], max_distance: int
) -> Iterator[Edges]:
    sizes = np.diff(starts)
    yield from _compare_small(words_N4, ordered, np.repeat(sizes, sizes), starts, max_distance)
    for bucket in np.flatnonzero(sizes > _CROWD):
        inside = ordered[starts[bucket] : starts[bucket + 1]]
        for place in range(_LEADERS):
            near = _distances(words_N4[inside[place]], words_N4[inside[place + 1 :]]) <= max_distance
            later = inside[place + 1 :][near]
            yield np.full(len(later), inside[place]), later


def _search(
    hashes_NB: NDArray[np.uint8],
    words_N4: NDArray[np.uint64],
    nodes: NDArray[np.int64],
    bits: NDArray[np.int64],
    max_distance: int,
    depth: int,
) -> Iterator[Edges]:
    """Edges among `nodes`, which agree in all bits except `bits`."""
    if len(nodes) < 2:
        return
    bands = max_distance + 1
    if depth == _DEPTH or len(bits) < bands:
        yield from _grow(words_N4, nodes, max_distance)
        return
    for band in range(bands):
        yield from _search_band(hashes_NB, words_N4, nodes, bits, band, max_distance, depth)


def _search_band(
    hashes_NB: NDArray[np.uint8],
    words_N4: NDArray[np.uint64],
    nodes: NDArray[np.int64],
    bits: NDArray[np.int64],
    band: int,
    max_distance: int,
    depth: int,
) -> Iterator[Edges]:
    """Edges among the `nodes` that also agree in one band of `bits`."""
    if len(nodes) < 2:
        return
    chosen = bits[band :: max_distance + 1]
    order, starts = _buckets(_extract(hashes_NB[nodes], chosen))
    sizes = np.diff(starts)
    ordered = nodes[order]
    yield from _compare_small(words_N4, ordered, np.repeat(sizes, sizes), starts, max_distance)
    for bucket in np.flatnonzero(sizes > _CROWD):
        inside = ordered[starts[bucket] : starts[bucket + 1]]
        yield from _search(hashes_NB, words_N4, inside, np.setdiff1d(bits, chosen), max_distance, depth + 1)


def _extract(hashes_NB: NDArray[np.uint8], bits: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The chosen bits of each hash, packed (n, bytes)."""
    return np.packbits((hashes_NB[:, bits >> 3] >> (7 - (bits & 7)).astype(np.uint8)) & 1, axis=1)


def _buckets(keys_NB: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(order, starts): order that puts equal keys next to each other, and the start of each run, followed by n."""
    packed = np.ascontiguousarray(keys_NB).view(f"V{keys_NB.shape[1]}").reshape(-1)
    order = np.argsort(packed, kind="stable")
    ordered = packed[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]]))
    return order, starts


def _compare_small(
    words_N4: NDArray[np.uint64],
    ordered: NDArray[np.int64],
    size_of: NDArray[np.int64],
    starts: NDArray[np.int64],
    max_distance: int,
) -> Iterator[Edges]:
    """Compare all pairs within buckets of at most _CROWD rows: one lag at a time, over all buckets at once."""
    position = np.arange(len(ordered)) - np.repeat(starts[:-1], np.diff(starts))
    active = np.flatnonzero((size_of > 1) & (size_of <= _CROWD))
    for lag in range(1, _CROWD):
        active = active[position[active] + lag < size_of[active]]
        if not len(active):
            return
        first, second = ordered[active], ordered[active + lag]
        near = _distances(words_N4[first], words_N4[second]) <= max_distance
        yield first[near], second[near]


def _grow(words_N4: NDArray[np.uint64], nodes: NDArray[np.int64], max_distance: int) -> Iterator[Edges]:
    """Spanning tree of each component of `nodes`; does not compare nodes that the tree has already reached."""
    rest = nodes
    while len(rest) > 1:
        frontier, rest = rest[:1], rest[1:]
        while len(frontier) and len(rest):
            step = max(1, _PAIRS_AT_ONCE // len(rest))
            block, frontier = frontier[:step], frontier[step:]
            near = _distances(words_N4[block][:, None], words_N4[rest][None]) <= max_distance
            reached = near.any(axis=0)
            yield block[near.argmax(axis=0)[reached]], rest[reached]
            frontier, rest = np.concatenate([frontier, rest[reached]]), rest[~reached]


def _distances(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Hamming distance over the last axis (4 words)."""
    return np.bitwise_count(a ^ b).sum(axis=-1, dtype=np.int64)
