"""Matches between hashes of videos, and the pairs of videos that enough of them join."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.group import Arrays, Part
from curate.duplicates.near.edges import DIGESTS, cell_of, edges_by_cell, exact_edges, rank_order
from curate.duplicates.near.hamming import BITS, Edges, band_pairs

Shared = Mapping[str, Any]


def matches(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    """Matches of a bucket, sent to the cells of their pairs: `pair` (m, 8), the node of the video that ranks first and
    the other's; `counts` (m, 2), of the hashes of each; `exact` (m,), whether the files are equal."""
    order = rank_order(part.arrays["node"])
    node, value, sort, count = (np.asarray(part.arrays[name])[order] for name in ("node", "value", "sort", "count"))
    first, later = exact_edges(node, value, sort)
    found: list[Edges] = [(first, later)]
    for band in range(shared["distance"] + 1):
        rows = np.flatnonzero(sort == DIGESTS + band)
        hashes = np.ascontiguousarray(value[rows]).view(np.uint8).reshape(-1, BITS // 8)
        found += [(rows[a], rows[b]) for a, b in band_pairs(hashes, band, shared["distance"])]
    a, b = (np.concatenate([pair[side] for pair in found]) for side in (0, 1))
    exact = np.arange(len(a)) < len(first)
    a, b = np.minimum(a, b), np.maximum(a, b)  # rows are in order of rank
    other = (node[a, 1:3] != node[b, 1:3]).any(axis=1)
    a, b, exact = a[other], b[other], exact[other]
    pair = np.concatenate([node[a], node[b]], axis=1)
    cells = ((pair[:, 2] ^ pair[:, 6]) % np.uint64(shared["count"])).astype(np.int64)
    return cells, {"pair": pair, "counts": np.stack([count[a], count[b]], axis=1), "exact": exact}


def joined(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    """Edges of the pairs of a cell that are duplicates, as those of `curate.duplicates.near.edges.find_edges`."""
    pair, counts, exact = (np.asarray(part.arrays[name]) for name in ("pair", "counts", "exact"))
    names, first, of = np.unique(pair[:, [1, 2, 5, 6]], axis=0, return_index=True, return_inverse=True)
    of = of.reshape(-1)
    same = np.bincount(of, exact, len(names)) > 0
    sides = [_distinct(of[~exact], pair[~exact, word], len(names)) for word in (3, 7)]
    shares = np.stack(sides, axis=1) / np.maximum(counts[first], 1)  # a noisy copy has many hashes for one of the other
    kept = np.flatnonzero(same | (shares.min(axis=1) >= shared["share"]))
    node, other = pair[first[kept], :4], pair[first[kept], 4:]
    cells, arrays = edges_by_cell(node, other, shared["count"])
    loops = pair[first[same], 4:]
    arrays = {name: np.concatenate([ends, loops]) for name, ends in arrays.items()}
    return np.concatenate([cells, cell_of(loops, shared["count"])]), arrays


def _distinct(of: NDArray[np.int64], rows: NDArray[np.uint64], pairs: int) -> NDArray[np.int64]:
    """Distinct rows (pairs,), which are hashes, of each pair."""
    found = np.unique(np.column_stack([of.astype(np.uint64), rows]), axis=0)
    return np.bincount(found[:, 0].astype(np.int64), minlength=pairs)
