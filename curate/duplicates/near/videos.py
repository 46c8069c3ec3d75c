"""`duplicates.videos` groups re-encoded, resized and trimmed copies of videos into sets, by hashes of their frames.

A row of the group is one hash of a video. Rows that share a band of their hashes meet in a bucket, as those of images
do; two of different videos within `max_distance` are a match. Matches are sent to one cell per pair of videos, which
joins the pair if enough hashes of both match. One match proves little: videos share titles and logos.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Artifact, Table
from curate.core.group import Group
from curate.core.hashing import key_words
from curate.core.row_lookup import SHARD, SHARDS, shard_index, shard_words
from curate.duplicates.near.find import MEMBERS, FindDuplicates, _digests, _originals

SHORT_BITS = 14
"""Bits of a row's merit, below its pixels, for seconds."""


class FindVideoDuplicates(FindDuplicates):
    """Find sets of videos or clips with equal bytes, or with many frame hashes of `video.look` in common, transitively.

    The keeper of a set is the member that ranks first by `prefer`, then by the most pixels, then by duration, then by
    a name that is not a copy's, then by the smallest key. The artifact is that of `duplicates.find`.
    """

    op: ClassVar[str] = "duplicates.videos"
    version: ClassVar[int] = 2

    max_distance: int = Field(
        20, ge=-1, le=64, description="Maximum Hamming distance between two hashes that match; -1: equal bytes only."
    )
    min_share: float = Field(
        0.4,
        gt=0,
        le=1,
        description="Share of the distinct hashes of each of two videos that must match. A copy that was trimmed to "
        "less of it is another video, as are the parts of a compilation.",
    )

    def reads(self) -> tuple[str, ...]:
        images = {"sha256", "pixel_sha256", "perceptual_hash", "flat"}
        return ("sha256", "frame_hashes", "duration_ms", *(name for name in super().reads() if name not in images))

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        found = [_changes(row or (), self.max_distance // 2) for row in table.column("frame_hashes").to_pylist()]
        counts = np.array([len(row) for row in found], dtype=np.int64)
        lines = np.repeat(np.arange(len(found)), np.maximum(counts, 1))  # a video without hashes has a row too
        first = np.diff(lines, prepend=-1) > 0
        hashes = b"".join(one for row in found for one in row or [bytes(32)])
        words, known = _digests(table.column("sha256"))
        zeros = np.zeros_like(words)
        digests, never = np.stack([words, zeros], axis=1), np.zeros_like(known)
        return {
            SHARD: shard_words(table)[lines],
            "key": key_words(table.column("key").to_pylist())[lines],
            "merit": (2 * self._merit(table) + _originals(table))[lines],
            "digests": digests[lines],
            "known": np.stack([known, never], axis=1)[lines] & first[:, None],
            "hash": np.frombuffer(hashes, np.uint8).reshape(-1, 32),
            "comparable": (counts > 0)[lines],
            "count": counts[lines],
        }

    def _merit(self, table: Table) -> NDArray[np.int64]:
        width, height, ms = (
            pc.fill_null(table.column(name), 0).to_numpy().astype(np.int64)
            for name in ("width", "height", "duration_ms")
        )
        pixels, seconds = np.minimum(width * height, (1 << 26) - 1), np.minimum(ms // 1000, (1 << SHORT_BITS) - 1)
        return self._preferred(table) + (pixels << SHORT_BITS) + seconds

    def fit(self, group: Group) -> Artifact:
        from curate.duplicates.near.edges import to_buckets
        from curate.duplicates.near.matches import joined, matches
        from curate.duplicates.near.sets import component_stars, store_members

        group.progress(0.0, "sending hashes to buckets")
        buckets = to_buckets(group, self.max_distance)
        cells = len(buckets.rows)
        pairs = buckets.partition("matches", matches, cells, count=cells, distance=self.max_distance)
        stars, counts = component_stars(pairs.partition("edges", joined, cells, count=cells, share=self.min_share))
        group.progress(0.9, "storing members")
        store_members(stars, group, MEMBERS)
        return {SHARDS: shard_index(group), "summary": {"rows": sum(group.rows), **counts}}


def _changes(hashes: Iterable[bytes | None], least: int) -> list[bytes]:
    """Distinct hashes that are further than that from the one before them that is kept. Where little moves, a copy's
    noise decides how many there are, and each is near to many of the other's."""
    kept, last = dict[bytes, None](), None
    for one in filter(None, hashes):
        value = int.from_bytes(one)
        if last is None or (value ^ last).bit_count() > least:
            kept[one], last = None, value
    return list(kept)
