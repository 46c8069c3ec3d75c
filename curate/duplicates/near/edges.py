"""Find rows of a pool that are the same image, bucket by bucket: no worker holds all digests or hashes.

Rows are sent to the bucket of each of their digests, and of the value of each band of their hash (see
`curate.duplicates.near.hamming`): rows that are equal or near meet in one. A bucket answers with the fewest edges that
join its components; these go to the cells of their ends, where `curate.duplicates.near.sets` makes sets of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.group import Arrays, Group, Part
from curate.core.row_lookup import starts_of
from curate.duplicates.near.hamming import BITS, band_edges, band_values, codes_of, spanning

MOST_BUCKETS, BUCKET_ROWS = 4096, 1 << 14
CELL_ROWS = 1 << 20
"""Rows of the pool for each cell of edges."""
DIGESTS = 2
Shared = Mapping[str, Any]
Nodes = NDArray[np.uint64]
"""(m, 4) words of rows: the complement of the pixels, the key, the number of the row in the group. The row
whose first three words are less is kept."""


def found_edges(group: Group, max_distance: int) -> Group:
    """Edges between rows with an equal digest of one sort, or with hashes within max_distance, where `comparable`:
    their components are the sets. An edge is in the cells of both ends, as `node` and `other` (m, 4 words each).

    A row that equals another exactly which ranks before it has a loop too. Parts have `key` (n, 2), `pixels` (n,),
    `digests` (n, sorts, 4 words), `known` (n, sorts), `hash` (n, 32 bytes) and `comparable` (n,).
    """
    rows, starts = sum(group.rows), starts_of(group)
    count, cells = (min(MOST_BUCKETS, max(1, rows // each)) for each in (BUCKET_ROWS, CELL_ROWS))
    buckets = group.partition("buckets", _to_buckets, count, starts=starts, buckets=count, distance=max_distance)
    return buckets.partition("edges", _to_cells, cells, count=cells, distance=max_distance)


def cell_of(node: Nodes, cells: int) -> NDArray[np.int64]:
    """The cell that knows all edges of a row, by its key."""
    return (node[:, 2] % np.uint64(cells)).astype(np.int64)


def both_ways(a: Nodes, b: Nodes, cells: int) -> tuple[NDArray[np.int64], Arrays]:
    """Edges, each in the cells of both ends."""
    node, other = np.concatenate([a, b]), np.concatenate([b, a])
    return cell_of(node, cells), {"node": node, "other": other}


def by_rank(node: Nodes) -> NDArray[np.int64]:
    """Order in which rows rank: most pixels first, then the smallest key."""
    return np.lexsort((node[:, 2], node[:, 1], node[:, 0]))


# --- steps, which see rows --------------------------------------------------------------------------------------------


def _to_buckets(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    held, count = part.arrays, np.uint64(shared["buckets"])
    pixels, number = np.asarray(held["pixels"]).astype(np.uint64), np.arange(part.rows, dtype=np.uint64)
    first = np.uint64(shared["starts"][part.index])
    nodes = np.column_stack([~pixels, np.asarray(held["key"]), number + first])
    rows: list[NDArray[np.int64]] = []
    sorts: list[NDArray[np.uint8]] = []
    values: list[NDArray[np.uint64]] = []
    cells: list[NDArray[np.uint64]] = []
    for sort in range(DIGESTS):
        row = np.flatnonzero(held["known"][:, sort])
        digest = np.asarray(held["digests"])[row, sort]
        rows.append(row)
        values.append(digest)
        cells.append(digest[:, 0] % count)
        sorts.append(np.full(len(row), sort, dtype=np.uint8))
    row = np.flatnonzero(held["comparable"])
    hashes = np.ascontiguousarray(np.asarray(held["hash"])[row])
    for band in range(shared["distance"] + 1):
        rows.append(row)
        values.append(hashes.view(np.uint64).reshape(-1, BITS // 64))
        cells.append(band_values(hashes, band, shared["distance"]) % count)
        sorts.append(np.full(len(row), DIGESTS + band, dtype=np.uint8))
    arrays = {"node": nodes[np.concatenate(rows)], "value": np.concatenate(values), "sort": np.concatenate(sorts)}
    return np.concatenate(cells).astype(np.int64), arrays


def _to_cells(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    """The edges of a bucket."""
    node, value, sort = (np.asarray(part.arrays[name]) for name in ("node", "value", "sort"))
    first, second = _equal(node, value, sort)
    near = []
    for band in range(shared["distance"] + 1):
        here = np.flatnonzero(sort == DIGESTS + band)
        hashes = np.ascontiguousarray(value[here]).view(np.uint8).reshape(-1, BITS // 8)
        near += [(here[a], here[b]) for a, b in band_edges(hashes, band, shared["distance"])]
    a, b = spanning(near)
    cells, arrays = both_ways(node[np.concatenate([first, a])], node[np.concatenate([second, b])], shared["count"])
    loops = node[np.unique(second)]
    joined = {name: np.concatenate([ends, loops]) for name, ends in arrays.items()}
    return np.concatenate([cells, cell_of(loops, shared["count"])]), joined


def _equal(node: Nodes, value: NDArray[np.uint64], sort: NDArray[np.uint8]) -> tuple[NDArray[np.int64], ...]:
    """(first, later): of rows with one digest, the one that ranks first, and each of the others."""
    ranked = np.flatnonzero(sort < DIGESTS)
    _, place, count = np.unique(value[ranked, 0], return_inverse=True, return_counts=True)
    ranked = ranked[count[place] > 1]  # few are left to be compared as a whole
    ranked = ranked[by_rank(node[ranked])]
    codes = codes_of(np.column_stack([sort[ranked].astype(np.uint64), value[ranked]]))
    _, first = np.unique(codes, return_index=True)  # of several, the one that ranks first
    leader = ranked[first][codes]
    later = leader != ranked
    return leader[later], ranked[later]
