"""`duplicates.find` gathers images that are the same into sets; what becomes of them is decided elsewhere.

Finding looks at the whole pool and costs. `duplicates.members` looks each row up in the sets, and `duplicates.drop`
decides. So another policy is a matter of seconds, and a training job can keep near-duplicates and still never split a
set between its training and its test side.
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
"""Name under which each part of the artifact stores its rows that are in sets, by key."""
KINDS = ("keeper", "exact", "near", "semantic")
"""By their number in `members`."""
_READS = ("sha256", "pixel_sha256", "perceptual_hash", "flat", "width", "height")


class FindDuplicates(Fit):
    """Sets of images with equal bytes, equal pixels, or perceptual hashes within `max_distance`, transitively.

    The keeper of a set is its member with the most pixels, then the smallest key. Flat images match exactly only.
    The artifact: `members`, by stretch of shards: key, keeper and kind of each member of a set of two or more; kind is
    keeper, exact (its bytes or pixels equal another member's that ranks before it) or near; and `summary`, counts.
    """

    op: ClassVar[str] = "duplicates.find"
    version: ClassVar[int] = 2
    kind: ClassVar[str] = KIND

    max_distance: int = Field(
        6,
        ge=-1,
        le=64,
        description="Most bits of 256 in which two near-duplicates' hashes differ; 0 to 6 holds re-encodings and tiny "
        "edits, 12 also recoloured and slightly redrawn images; -1 finds exact duplicates only.",
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
        from curate.duplicates.near.edges import found_edges  # SciPy, which plans do without
        from curate.duplicates.near.sets import settled, store_members

        group.progress(0.0, "digests and hashes go to their buckets")
        stars, told = settled(found_edges(group, self.max_distance))
        group.progress(0.9, "members are stored")
        store_members(stars, group, MEMBERS)
        return {SHARDS: shard_index(group), "summary": {"rows": sum(group.rows), **told}}


def _digests(column: pa.ChunkedArray) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Digests of 64 hexadecimal characters -> words (n, 4), and which rows (n,) have one."""
    text = "".join(pc.fill_null(column, "0" * 64).to_pylist())
    words = np.frombuffer(bytes.fromhex(text), dtype=">u8").astype(np.uint64).reshape(-1, 4)
    return words, pc.is_valid(column).to_numpy()


def _hashes(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    """A fixed-size binary column -> bytes (n, width); null -> zeros."""
    width = column.type.byte_width
    filled = pc.fill_null(column, bytes(width)).combine_chunks()
    data = np.frombuffer(filled.buffers()[1], dtype=np.uint8)
    return data[filled.offset * width : (filled.offset + len(filled)) * width].reshape(-1, width)
