"""Finds edges between duplicate rows of a pool, bucket by bucket: no worker holds all digests or hashes.

Each row is sent to one bucket per digest and one per band of its hash (see `curate.duplicates.near.hamming`), so equal
or near rows share a bucket. A bucket returns a spanning forest of its components. Each edge is sent to the cells of
its two ends; `curate.duplicates.near.sets` turns the edges into sets.
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
"""Rows of the pool per cell of edges."""
DIGESTS = 2
Shared = Mapping[str, Any]
Nodes = NDArray[np.uint64]
"""(m, 4) words: the complement of the merit, two words of the key, the row's number in the group. The first three words
give the rank: the row with the lowest ranks first and is kept."""


def find_edges(group: Group, max_distance: int) -> Group:
    """Edges whose components are the duplicate sets, as `node` and `other` (m, 4 words each).

    An edge joins two rows with the same digest of one sort, or two `comparable` rows whose hashes are within
    max_distance. It is stored in the cells of both ends. A row that exactly equals a row ranking before it also has a
    loop. Input parts have `key` (n, 2), `merit` (n,), `digests` (n, sorts, 4 words), `known` (n, sorts), `hash` (n, 32
    bytes) and `comparable` (n,).
    """
    cells = min(MOST_BUCKETS, max(1, sum(group.rows) // CELL_ROWS))
    return to_buckets(group, max_distance).partition(
        "edges", _spanning_edges, cells, count=cells, distance=max_distance
    )


def to_buckets(group: Group, max_distance: int) -> Group:
    """Each row once for each digest and each band, with its `node`, the `value` of digest or hash, and the `sort`."""
    count = min(MOST_BUCKETS, max(1, sum(group.rows) // BUCKET_ROWS))
    shared = {"starts": starts_of(group), "buckets": count, "distance": max_distance}
    return group.partition("buckets", _to_buckets, count, **shared)


def cell_of(node: Nodes, cells: int) -> NDArray[np.int64]:
    """Cell (m,) of each row, by key; it holds all edges of the row."""
    return (node[:, 2] % np.uint64(cells)).astype(np.int64)


def edges_by_cell(a: Nodes, b: Nodes, cells: int) -> tuple[NDArray[np.int64], Arrays]:
    """(cells, arrays): each edge twice, once for the cell of each end."""
    node, other = np.concatenate([a, b]), np.concatenate([b, a])
    return cell_of(node, cells), {"node": node, "other": other}


def rank_order(node: Nodes) -> NDArray[np.int64]:
    """Order of the rows: the highest merit first, then the smallest key."""
    return np.lexsort((node[:, 2], node[:, 1], node[:, 0]))


# --- steps on rows ----------------------------------------------------------------------------------------------------


def _to_buckets(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    columns, count = part.arrays, np.uint64(shared["buckets"])
    merit, number = np.asarray(columns["merit"]).astype(np.uint64), np.arange(part.rows, dtype=np.uint64)
    first = np.uint64(shared["starts"][part.index])
    nodes = np.column_stack([~merit, np.asarray(columns["key"]), number + first])
    rows: list[NDArray[np.int64]] = []
    sorts: list[NDArray[np.uint8]] = []
    values: list[NDArray[np.uint64]] = []
    cells: list[NDArray[np.uint64]] = []
    for sort in range(DIGESTS):
        row = np.flatnonzero(columns["known"][:, sort])
        digest = np.asarray(columns["digests"])[row, sort]
        rows.append(row)
        values.append(digest)
        cells.append(digest[:, 0] % count)
        sorts.append(np.full(len(row), sort, dtype=np.uint8))
    row = np.flatnonzero(columns["comparable"])
    hashes = np.ascontiguousarray(np.asarray(columns["hash"])[row])
    for band in range(shared["distance"] + 1):
        rows.append(row)
        values.append(hashes.view(np.uint64).reshape(-1, BITS // 64))
        cells.append(band_values(hashes, band, shared["distance"]) % count)
        sorts.append(np.full(len(row), DIGESTS + band, dtype=np.uint8))
    every = np.concatenate(rows)
    arrays = {"node": nodes[every], "value": np.concatenate(values), "sort": np.concatenate(sorts)}
    arrays |= {"count": np.asarray(columns["count"])[every]} if "count" in columns else {}  # of hashes of a video
    return np.concatenate(cells).astype(np.int64), arrays


def _spanning_edges(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    """Spanning edges of a bucket, sent to the cells of their ends."""
    node, value, sort = (np.asarray(part.arrays[name]) for name in ("node", "value", "sort"))
    first, second = exact_edges(node, value, sort)
    near = []
    for band in range(shared["distance"] + 1):
        rows = np.flatnonzero(sort == DIGESTS + band)
        hashes = np.ascontiguousarray(value[rows]).view(np.uint8).reshape(-1, BITS // 8)
        near += [(rows[a], rows[b]) for a, b in band_edges(hashes, band, shared["distance"])]
    a, b = spanning(near)
    cells, arrays = edges_by_cell(node[np.concatenate([first, a])], node[np.concatenate([second, b])], shared["count"])
    loops = node[np.unique(second)]
    joined = {name: np.concatenate([ends, loops]) for name, ends in arrays.items()}
    return np.concatenate([cells, cell_of(loops, shared["count"])]), joined


def exact_edges(node: Nodes, value: NDArray[np.uint64], sort: NDArray[np.uint8]) -> tuple[NDArray[np.int64], ...]:
    """(first, later): edges from the first-ranking row of each digest to every other row with that digest."""
    ranked = np.flatnonzero(sort < DIGESTS)
    _, place, count = np.unique(value[ranked, 0], return_inverse=True, return_counts=True)
    ranked = ranked[count[place] > 1]  # few rows remain for the full comparison
    ranked = ranked[rank_order(node[ranked])]
    codes = codes_of(np.column_stack([sort[ranked].astype(np.uint64), value[ranked]]))
    _, first = np.unique(codes, return_index=True)  # the first-ranking row of each code
    leader = ranked[first][codes]
    later = leader != ranked
    return leader[later], ranked[later]
