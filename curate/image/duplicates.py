"""`duplicates.find` gathers images that are the same into sets; what becomes of them is decided elsewhere.

Finding looks at the whole pool and costs. `duplicates.members` looks each row up in the sets, and `duplicates.drop`
decides. So another policy is a matter of seconds, and a training job can keep near-duplicates and still never split a
set between its training and its test side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Artifact, Fit, Table
from curate.core.group import Group, Part
from curate.core.hashing import key_words, keys_of_words

KIND = "duplicate_sets"
_READS = ("sha256", "pixel_sha256", "perceptual_hash", "flat", "width", "height")


class FindDuplicates(Fit):
    """Sets of images with equal bytes, equal pixels, or perceptual hashes within `max_distance`, transitively.

    The keeper of a set is its member with the most pixels, then the smallest key. Flat images match exactly only.
    The artifact: `duplicates`, a row (key, keeper, kind) per member of a set of two or more, sorted by key; kind is
    keeper, exact (its bytes or pixels equal another member's that ranks before it) or near; and `summary`, counts.
    """

    op: ClassVar[str] = "duplicates.find"
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
            "key": key_words(table.column("key").to_pylist()),
            "pixels": pc.fill_null(pixels, 0).to_numpy(),
            "digests": np.stack([words for words, _ in digests], axis=1),
            "known": np.stack([known for _, known in digests], axis=1),
            "hash": _hashes(table.column("perceptual_hash")),
            "comparable": pc.fill_null(comparable, False).to_numpy(),
        }

    def fit(self, group: Group) -> Artifact:
        from curate.image.duplicate_edges import exact_edges, near_edges, starts_of  # SciPy, which plans do without
        from curate.image.duplicate_sets import duplicate_sets

        group.tell(0.0, "digests go to their buckets")
        exact = exact_edges(group)
        group.tell(0.3, "hashes go to the buckets of their bands")
        near = near_edges(group, self.max_distance)
        rows = np.unique(np.concatenate([*exact, *near]))
        facts = list(group.each(_facts, rows=rows, starts=starts_of(group)))
        keys = np.array(keys_of_words(np.concatenate([words for words, _ in facts])), dtype="S32")
        pixels = np.concatenate([pixels for _, pixels in facts])
        places = [[(np.searchsorted(rows, a), np.searchsorted(rows, b))] for a, b in (exact, near)]
        found = duplicate_sets(keys, pixels, *places)
        kinds = np.array(["keeper", "exact", "near"])[found.kind]
        table = pa.table({"key": _strings(keys[found.row]), "keeper": _strings(keys[found.keeper]), "kind": kinds})
        return {"duplicates": table, "summary": _summary(sum(group.rows), found.keeper, found.kind)}


def _facts(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Key words and pixels of those of the rows that the part holds."""
    edges = shared["starts"][part.index : part.index + 2]
    low, high = np.searchsorted(shared["rows"], edges)
    places = shared["rows"][low:high] - edges[0]
    return np.asarray(part.arrays["key"])[places], np.asarray(part.arrays["pixels"])[places]


def _summary(rows: int, keeper: NDArray[np.int64], kind: NDArray[np.int8]) -> dict[str, int]:
    sizes = np.unique(keeper, return_counts=True)[1]
    return {
        "rows": rows,
        "sets": len(sizes),
        "largest_set": int(sizes.max(initial=0)),
        "exact_duplicates": int((kind == 1).sum()),
        "near_duplicates": int((kind == 2).sum()),
    }


def _strings(keys: NDArray[np.bytes_]) -> pa.Array:
    return pa.array(keys.astype("U32"), pa.string())


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
