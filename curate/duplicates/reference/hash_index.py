"""Nearest neighbours among a fixed set of 256-bit hashes, by Hamming distance, for many queries at once.

Multi-index hashing (Norouzi et al. 2012, section 3): two hashes at distance d or less agree in at least one of d + 1
bands of bits, so a query is compared only with hashes that share a band with it. If the bands have few bits, too many
hashes share one; then a query is compared with all hashes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

BITS = 256
LEAST_BAND_BITS = 12
_PAIRS_AT_ONCE = 1 << 20


class HashIndex:
    def __init__(self, hashes_RB: NDArray[np.uint8], max_distance: int) -> None:
        """hashes (R, 32); `max_distance` in bits, 0 to 255."""
        self._words = _words(hashes_RB)
        self._most, bands = max_distance, max_distance + 1
        self._bands = bands if BITS // bands >= LEAST_BAND_BITS else 0
        values = [_band(hashes_RB, band, bands) for band in range(self._bands)]
        self._orders = [np.argsort(value, kind="stable") for value in values]
        self._sorted = [value[order] for value, order in zip(values, self._orders, strict=True)]

    def nearest(self, hashes_NB: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """hashes (n, 32) -> index (n,) of the nearest hash within `max_distance`, the lowest among equals, or -1; and
        the Hamming distance (n,), 0 without a match."""
        words, count = _words(hashes_NB), max(1, len(self._words))
        best = np.full(len(words), (BITS + 1) * count, dtype=np.int64)
        for query, place in self._pairs(hashes_NB):
            bits = np.bitwise_count(words[query] ^ self._words[place]).sum(axis=-1, dtype=np.int64)
            near = bits <= self._most
            np.minimum.at(best, query[near], bits[near] * count + place[near])
        found = best < (BITS + 1) * count
        return np.where(found, best % count, -1), np.where(found, best // count, 0)

    def _pairs(self, hashes_NB: NDArray[np.uint8]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Candidate pairs (query, index), each at least once; about `_PAIRS_AT_ONCE` at a time."""
        if not len(hashes_NB) or not len(self._words):
            return
        if not self._bands:
            everywhere = np.zeros(len(hashes_NB), np.int64), np.full(len(hashes_NB), len(self._words))
            yield from _expand(*everywhere, np.arange(len(self._words)))
        for band in range(self._bands):
            value = _band(hashes_NB, band, self._bands)
            begin, end = (np.searchsorted(self._sorted[band], value, side) for side in ("left", "right"))
            yield from _expand(begin, end - begin, self._orders[band])


def _expand(
    begin: NDArray[np.int64], counts: NDArray[np.int64], order: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Runs (begin, count) of `order`, one per query -> pairs (query, entry), one per entry of a run."""
    edges = np.concatenate([[0], np.cumsum(counts)])
    start = 0
    while start < len(counts):
        stop = max(start + 1, int(np.searchsorted(edges, edges[start] + _PAIRS_AT_ONCE, "right")) - 1)
        query = np.repeat(np.arange(start, stop), counts[start:stop])
        within = np.arange(len(query)) - (edges[query] - edges[start])
        yield query, order[begin[query] + within]
        start = stop


def _band(hashes_NB: NDArray[np.uint8], band: int, bands: int) -> NDArray[np.uint64]:
    """Word (n,) hashed from every `bands`-th bit: equal bits give equal words."""
    bits = np.arange(band, BITS, bands)
    packed = np.packbits((hashes_NB[:, bits >> 3] >> (7 - (bits & 7)).astype(np.uint8)) & 1, axis=1)
    words = _words(np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))))
    folded = words[:, 0].copy()
    for word in words[:, 1:].T:
        folded = folded * np.uint64(0x9E3779B97F4A7C15) + word  # wraps
    return folded


def _words(hashes_NB: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(hashes_NB).view(np.uint64)
