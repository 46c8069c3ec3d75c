"""`duplicates.find` groups exact and near-duplicate images into sets; it rejects nothing.

Finding the sets reads the whole pool and is costly. `duplicates.members` looks each row up in the sets, and
`duplicates.drop` decides which rows to reject. Changing that policy therefore takes seconds. A training job can also
keep near-duplicates without splitting a set between training and test data.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Added, Artifact, Fit, Table
from curate.core.group import Group
from curate.core.hashing import key_words
from curate.core.row_lookup import SHARD, SHARDS, shard_index, shard_words
from curate.kernels.meta import META, field_of

KIND = "duplicate_sets"
MEMBERS = "members"
"""Name of the files, one per part of the artifact, with the part's rows that are in sets, sorted by key."""
KINDS = ("keeper", "exact", "near", "semantic")
"""Kinds, indexed by their number in `members`."""
_READS = ("source_id", "sha256", "pixel_sha256", "perceptual_hash", "flat", "width", "height")
_PIXEL_BITS = 40
"""Bits of a row's merit that hold its number of pixels; those above hold what it has of `prefer`, and one below its
name."""
_NAME_OF_A_COPY = (
    r"(?i)([ ._-]?\(\d{1,3}\)|[ ._-]\(?(another |\d+(st|nd|rd|th) )?copy( ?\(?\d+\)?)?\)?)(\.\w+)?$|(^|/)copy of "
)
"""As browsers, Windows, macOS and Linux desktops name them: photo (1).jpg, photo - Copy (2).jpg, photo copy.jpg."""


class FindDuplicates(Fit):
    """Find sets of images with equal bytes, equal pixels, or hashes within `max_distance`, transitively.

    The keeper of a set is the member that ranks first by `prefer`, then by the most pixels, then by a name that is not
    a copy's (`photo.jpg` before `photo (1).jpg`), then by the smallest key.
    Flat images are compared exactly only. Artifact: `members`, one file per range of shards, with key, keeper and kind
    of each member of a set of two or more; and `summary`, counts. Kind is keeper, exact (bytes or pixels equal those of
    a member that ranks before it) or near.
    """

    op: ClassVar[str] = "duplicates.find"
    version: ClassVar[int] = 3
    kind: ClassVar[str] = KIND

    max_distance: int = Field(
        6,
        ge=-1,
        le=64,
        description="Maximum Hamming distance between the 256-bit hashes of near-duplicates; 0 to 6 covers "
        "re-encodings and tiny edits, 12 also recoloured and slightly redrawn images; -1 finds exact duplicates only.",
    )
    prefer: Annotated[tuple[str, ...], Added()] = Field(
        (),
        max_length=20,
        description="Which copy to keep, before the number of pixels counts: columns or fields of the pool's meta that "
        "should have a value, the most important first. [source=camera, source=phone, caption] keeps a copy from the "
        "folder camera, otherwise from phone, otherwise any other, and among these one with a caption.",
    )

    def meta_fields(self) -> tuple[str, ...]:
        return tuple(wanted.partition("=")[0] for wanted in self.prefer)

    def reads(self) -> tuple[str, ...]:
        names = (wanted.partition("=")[0] for wanted in self.prefer)
        return tuple(dict.fromkeys([*_READS, *("meta" if name.startswith(META) else name for name in names)]))

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        pixels = pc.multiply(table.column("width").cast(pa.int64()), table.column("height").cast(pa.int64()))
        digests = [_digests(table.column(name)) for name in ("sha256", "pixel_sha256")]
        comparable = pc.and_(pc.is_valid(table.column("perceptual_hash")), pc.equal(table.column("flat"), False))
        return {
            SHARD: shard_words(table),
            "key": key_words(table.column("key").to_pylist()),
            "merit": 2 * (self._preferred(table) + pc.fill_null(pixels, 0).to_numpy()) + _originals(table),
            "digests": np.stack([words for words, _ in digests], axis=1),
            "known": np.stack([known for _, known in digests], axis=1),
            "hash": _hashes(table.column("perceptual_hash")),
            "comparable": pc.fill_null(comparable, False).to_numpy(),
        }

    def _preferred(self, table: Table) -> NDArray[np.int64]:
        """What each row (n,) has of `prefer`, in the bits above the number of pixels."""
        found = np.zeros(table.num_rows, dtype=np.int64)
        for name, equals, wanted in (one.partition("=") for one in self.prefer):
            values = table.column("meta" if name.startswith(META) else name).to_pylist()
            values = [field_of(value, name) for value in values] if name.startswith(META) else values
            has = [str(value) == wanted if equals else value not in (None, "") for value in values]
            found = found * 2 + np.array(has, dtype=np.int64)
        return found << _PIXEL_BITS

    def fit(self, group: Group) -> Artifact:
        from curate.duplicates.near.edges import find_edges  # imports SciPy, which plans do not need
        from curate.duplicates.near.sets import component_stars, store_members

        group.progress(0.0, "sending digests and hashes to buckets")
        stars, counts = component_stars(find_edges(group, self.max_distance))
        group.progress(0.9, "storing members")
        store_members(stars, group, MEMBERS)
        return {SHARDS: shard_index(group), "summary": {"rows": sum(group.rows), **counts}}


def _originals(table: Table) -> NDArray[np.int64]:
    """1 for each row (n,) whose name is not that of a copy, otherwise 0."""
    copies = pc.match_substring_regex(table.column("source_id"), _NAME_OF_A_COPY)
    return 1 - pc.fill_null(copies, False).to_numpy().astype(np.int64)


def _digests(column: pa.ChunkedArray) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Digests of 64 hexadecimal characters -> words (n, 4), and a mask (n,) of the rows that have a digest."""
    column = pc.if_else(pc.equal(pc.utf8_length(column), 64), column, None)  # of large files in place: edges
    text = "".join(pc.fill_null(column, "0" * 64).to_pylist())
    words = np.frombuffer(bytes.fromhex(text), dtype=">u8").astype(np.uint64).reshape(-1, 4)
    return words, pc.is_valid(column).to_numpy()


def _hashes(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    """Fixed-size binary column -> bytes (n, width); nulls become zeros."""
    width = column.type.byte_width
    filled = pc.fill_null(column, bytes(width)).combine_chunks()
    data = np.frombuffer(filled.buffers()[1], dtype=np.uint8)
    return data[filled.offset * width : (filled.offset + len(filled)) * width].reshape(-1, width)
