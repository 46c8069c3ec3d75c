"""Which rows of a pool are the same picture, found bucket by bucket: no worker holds all digests or hashes.

Rows are sent to the bucket of each of their digests, and of the value of each band of their hash (see
curate.image.hamming): whatever is equal, or near, meets in one. A bucket answers with the fewest edges that join its
components, so the driver sees duplicates only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.group import Arrays, Group, Part
from curate.image.hamming import Edges, band_edges, band_values, codes_of, group_edges, spanning

MOST_BUCKETS, BUCKET_ROWS = 4096, 1 << 14
Shared = Mapping[str, Any]


def exact_edges(group: Group) -> Edges:
    """Edges, by number of the row in the group, that join rows with equal digests of one sort.

    Parts have `digests` (n, sorts, 4 words) and `known` (n, sorts).
    """
    count = buckets_for(group)
    buckets = group.partition("digests", _to_digests, count, starts=starts_of(group), buckets=count)
    return spanning(list(buckets.each(_equal)))


def near_edges(group: Group, max_distance: int) -> Edges:
    """Edges whose components are those of the graph 'hashes within max_distance', where `comparable` (n,).

    Parts have `hash` (n, 32 bytes).
    """
    if max_distance < 0:
        return spanning([])
    count = buckets_for(group)
    buckets = group.partition("bands", _to_bands, count, starts=starts_of(group), buckets=count, distance=max_distance)
    return spanning(list(buckets.each(_near, distance=max_distance)))


def starts_of(group: Group) -> NDArray[np.int64]:
    """Number of the first row of each part, and of all rows."""
    return np.concatenate([[0], np.cumsum(group.rows)]).astype(np.int64)


def buckets_for(group: Group) -> int:
    return min(MOST_BUCKETS, max(1, sum(group.rows) // BUCKET_ROWS))


# --- steps, which see rows --------------------------------------------------------------------------------------------


def _to_digests(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    row, sort = np.nonzero(part.arrays["known"])
    digest = np.asarray(part.arrays["digests"])[row, sort]
    arrays = {"row": row + shared["starts"][part.index], "sort": sort.astype(np.uint64), "digest": digest}
    return (digest[:, 0] % np.uint64(shared["buckets"])).astype(np.int64), arrays


def _equal(part: Part, shared: Shared) -> Edges:
    first, second = group_edges(codes_of(np.column_stack([part.arrays["sort"], part.arrays["digest"]])))
    row = np.asarray(part.arrays["row"])
    return spanning([(row[first], row[second])])


def _to_bands(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    row = np.flatnonzero(part.arrays["comparable"])
    hashes, bands = np.asarray(part.arrays["hash"])[row], shared["distance"] + 1
    values = [band_values(hashes, band, shared["distance"]) % np.uint64(shared["buckets"]) for band in range(bands)]
    arrays = {
        "row": np.tile(row + shared["starts"][part.index], bands),
        "hash": np.tile(hashes, (bands, 1)),
        "band": np.repeat(np.arange(bands, dtype=np.uint8), len(row)),
    }
    return np.concatenate(values).astype(np.int64), arrays


def _near(part: Part, shared: Shared) -> Edges:
    found = []
    for band in np.unique(part.arrays["band"]):
        here = np.flatnonzero(part.arrays["band"] == band)
        row = np.asarray(part.arrays["row"])[here]
        hashes = np.asarray(part.arrays["hash"])[here]
        found += [(row[a], row[b]) for a, b in band_edges(hashes, int(band), shared["distance"])]
    return spanning(found)
