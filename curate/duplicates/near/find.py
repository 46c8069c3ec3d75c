"""`duplicates.find` groups exact and near-duplicate images into sets; it rejects nothing.

Finding the sets reads the whole pool and is costly. `duplicates.members` looks each row up in the sets, and
`duplicates.drop` decides which rows to reject. Changing that policy therefore takes seconds. A training job can also
keep near-duplicates without splitting a set between training and test data.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Artifact, Fit, Table
from curate.core.group import Group
from curate.core.hashing import key_words
from curate.core.row_lookup import SHARD, SHARDS, shard_index, shard_words

KIND = "duplicate_sets"
MEMBERS = "members"
"""Name of the files, one per part of the artifact, with the part's rows that are in sets, sorted by key."""
KINDS = ("keeper", "exact", "near", "semantic")
"""Kinds, indexed by their number in `members`."""
_READS = ("sha256", "pixel_sha256", "perceptual_hash", "flat", "width", "height")


class FindDuplicates(Fit):
    """Find sets of images with equal bytes, equal pixels, or hashes within `max_distance`, transitively.

    The keeper of a set is the member with the most pixels, then the smallest key. Flat images are compared exactly
    only. Artifact: `members`, one file per range of shards, with key, keeper and kind of each member of a set of two or
    more; and `summary`, counts. Kind is keeper, exact (bytes or pixels equal those of a member that ranks before it) or
    near.
    """

    op: ClassVar[str] = "duplicates.find"
    version: ClassVar[int] = 2
    kind: ClassVar[str] = KIND

    max_distance: int = Field(
        6,
        ge=-1,
        le=64,
        description="Maximum Hamming distance between the 256-bit hashes of near-duplicates; 0 to 6 covers "
        "re-encodings and tiny edits, 12 also recoloured and slightly redrawn images; -1 finds exact duplicates only.",
    )

    def reads(self) -> tuple[str, ...]:
        return _READS

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        pixels = pc.multiply(table.column("width").cast(pa.int64()), table.column("height").cast(pa.int64()))
        digests = [_digests(table.column(name)) for name in ("sha256", "pixel_sha256")]
        comparable = pc.and_(pc.is_valid(table.column("perceptual_hash")), pc.equal(table.column("flat"), False))
        return {
            SHARD: shard_words(table),
            "key": key_words(table.column("key").to_pylist()),
            "pixels": pc.fill_null(pixels, 0).to_numpy(),
            "digests": np.stack([words for words, _ in digests], axis=1),
            "known": np.stack([known for _, known in digests], axis=1),
            "hash": _hashes(table.column("perceptual_hash")),
            "comparable": pc.fill_null(comparable, False).to_numpy(),
        }

    def fit(self, group: Group) -> Artifact:
        from curate.duplicates.near.edges import find_edges  # imports SciPy, which plans do not need
        from curate.duplicates.near.sets import component_stars, store_members

        group.progress(0.0, "sending digests and hashes to buckets")
        stars, counts = component_stars(find_edges(group, self.max_distance))
        group.progress(0.9, "storing members")
        store_members(stars, group, MEMBERS)
        return {SHARDS: shard_index(group), "summary": {"rows": sum(group.rows), **counts}}


def _digests(column: pa.ChunkedArray) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Digests of 64 hexadecimal characters -> words (n, 4), and a mask (n,) of the rows that have a digest."""
    text = "".join(pc.fill_null(column, "0" * 64).to_pylist())
    words = np.frombuffer(bytes.fromhex(text), dtype=">u8").astype(np.uint64).reshape(-1, 4)
    return words, pc.is_valid(column).to_numpy()


def _hashes(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    """Fixed-size binary column -> bytes (n, width); nulls become zeros."""
    width = column.type.byte_width
    filled = pc.fill_null(column, bytes(width)).combine_chunks()
    data = np.frombuffer(filled.buffers()[1], dtype=np.uint8)
    return data[filled.offset * width : (filled.offset + len(filled)) * width].reshape(-1, width)
