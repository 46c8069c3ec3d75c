"""`text.duplicates` counts texts that a pool has more than once; `text.drop_duplicates` keeps so many rows of each.

The web repeats itself: templates, quotes, products. Counting looks at the whole pool; dropping is a look-up, so another
number of copies takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Batch, Fit, Map, Table
from curate.core.errors import CurateError
from curate.core.group import Arrays, Group, Part
from curate.core.hashing import key_words, keys_of_words
from curate.text.duplicates_kernels import as_bytes, digest_words, found_in, normalised, packed, repeated
from curate.text.language import plain_texts

KIND = "text_sets"
MOST_BUCKETS, BUCKET_ROWS = 4096, 1 << 16
EXAMPLE_BYTES = 96
Shared = Mapping[str, Any]


class FindTextDuplicates(Fit):
    """Texts that occur more than once, after case folding, NFKC, and folding of white space and punctuation.

    The artifact: `texts`, the most frequent first: `digest` (128 bits, of the normalised text), `count`, `example` (a
    row's text, up to 96 bytes), `keys` (the `keepers` rows of the smallest hash(seed, key)); and `summary`: `rows` with
    a text, `texts` that differ, `repeated` ones, `surplus` rows beyond the first of each, `largest` count. Texts that
    occur once are not in it.
    """

    op: ClassVar[str] = "text.duplicates"
    version: ClassVar[int] = 2
    kind: ClassVar[str] = KIND

    column: str = Field("text", description="Column of the texts: one text a row.")
    punctuation: bool = Field(False, description="Whether texts that differ in punctuation and symbols alone differ.")
    digits: bool = Field(True, description="Whether texts that differ in digits alone differ (`photo 12`, `photo 13`).")
    keepers: int = Field(1, ge=1, le=100, description="Rows named of each text: the most that can be kept of it.")
    seed: int = Field(0, ge=0, description="Seed of which rows those are.")

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        texts = plain_texts(self.op, self.column, table.column(self.column)).to_pylist()
        same = [normalised(text or "", punctuation=self.punctuation, digits=self.digits) for text in texts]
        there = np.array([place for place, text in enumerate(same) if text], dtype=np.int64)
        keys = table.column("key").take(pa.array(there)).to_pylist()
        return {
            "key": key_words(keys),
            "digest": digest_words([same[place] for place in there]),
            "example": np.array([_clipped(texts[place]) for place in there], dtype=f"S{EXAMPLE_BYTES}"),
        }

    def fit(self, group: Group) -> Artifact:
        starts = np.concatenate([[0], np.cumsum(group.rows)]).astype(np.int64)
        count = min(MOST_BUCKETS, max(1, int(starts[-1]) // BUCKET_ROWS))
        group.tell(0.0, "texts go to the buckets of their digests")
        buckets = group.partition("digests", _to_buckets, count, starts=starts, buckets=count)
        found = list(buckets.each(_repeated, seed=self.seed, keepers=self.keepers))
        digest, times, keys, row = (np.concatenate([part[i] for part in found]) for i in range(4))
        group.tell(0.8, "examples are fetched")
        by_row = np.argsort(row)
        examples = np.empty(len(row), dtype=f"S{EXAMPLE_BYTES}")
        examples[by_row] = np.concatenate(list(group.each(_examples, rows=row[by_row], starts=starts)))
        order = np.lexsort((digest[:, 1], digest[:, 0], -times))
        table = pa.table(
            {
                "digest": pa.array(keys_of_words(digest[order]), pa.string()),
                "count": times[order],
                "example": pa.array([e.decode("utf-8", "ignore") for e in examples[order].tolist()], pa.string()),
                "keys": _key_lists(keys[order], times[order]),
            }
        )
        surplus = int((times - 1).sum())
        summary = {
            "rows": int(starts[-1]),
            "texts": int(starts[-1]) - surplus,
            "repeated": len(times),
            "surplus": surplus,
            "largest": int(times.max(initial=0)),
            "made": {name: getattr(self, name) for name in ("column", "punctuation", "digits", "keepers")},
        }
        return {"texts": table, "summary": summary}


def _clipped(text: str) -> bytes:
    return text[:EXAMPLE_BYTES].replace("\0", " ").encode("utf-8", "replace")[:EXAMPLE_BYTES]


def _key_lists(keys: NDArray[np.uint64], times: NDArray[np.int64]) -> pa.Array:
    """Key words (m, k, 2) and counts (m,) -> the first min(k, count) keys of each."""
    lengths = np.minimum(times, keys.shape[1])
    flat = keys[np.arange(keys.shape[1]) < lengths[:, None]]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(keys_of_words(flat), pa.string()))


# --- steps, which see rows --------------------------------------------------------------------------------------------


def _to_buckets(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    digest = np.asarray(part.arrays["digest"])
    arrays = {
        "digest": digest,
        "key": np.asarray(part.arrays["key"]),
        "row": np.arange(part.rows) + shared["starts"][part.index],
    }
    return (digest[:, 0] % np.uint64(shared["buckets"])).astype(np.int64), arrays


def _repeated(part: Part, shared: Shared) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Digest (m, 2), count (m,), keys (m, keepers, 2) and the first keeper's row (m,)."""
    digest, key, row = (np.asarray(part.arrays[name]) for name in ("digest", "key", "row"))
    count, rows = repeated(digest, key, shared["seed"], shared["keepers"])
    return digest[rows[:, 0]], count, key[rows], row[rows[:, 0]]


def _examples(part: Part, shared: Shared) -> NDArray[np.bytes_]:
    edges = shared["starts"][part.index : part.index + 2]
    low, high = np.searchsorted(shared["rows"], edges)
    return np.asarray(part.arrays["example"])[shared["rows"][low:high] - edges[0]]


# ----------------------------------------------------------------------------------------------------------------------


class DropTextDuplicates(Map):
    """How often each row's text occurs in the pool; refuses its rows beyond `copies` of them.

    Kept are the rows that the sets name, and no others: both stages must have the same `from`, since a named row that
    is refused in between takes its text with it. `text_count` is null without a text. Rejects: text_duplicate.
    """

    op: ClassVar[str] = "text.drop_duplicates"
    ports: ClassVar[dict[str, str]] = {"sets": KIND}
    batch_rows: ClassVar[int] = 4096

    column: str = Field("text", description="Column of the texts, as `text.duplicates` has read it.")
    copies: int = Field(1, ge=1, description="Rows kept of each text; at most `keepers` of `text.duplicates`.")

    _digests: NDArray[np.bytes_] = PrivateAttr()
    _counts: NDArray[np.int64] = PrivateAttr()
    _kept: NDArray[np.bytes_] = PrivateAttr()
    _made: dict[str, bool] = PrivateAttr()

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError where the sets are of another column, or more copies are wanted than they name."""
        table, made = artifacts["sets"]["texts"], dict(artifacts["sets"]["summary"]["made"])
        if self.column != (column := made.pop("column")):
            raise CurateError(
                f"{self.op}.column: {self.column!r}, but its sets are of the texts in {column!r}; name that column, or "
                f"sets made of {self.column!r}"
            )
        if self.copies > (named := made.pop("keepers")):
            raise CurateError(
                f"{self.op}.copies: {self.copies}, but its sets name {named} rows of a text; "
                f"give text.duplicates keepers: {self.copies}"
            )
        digests = packed(table.column("digest"))
        order = np.argsort(digests)
        self._digests, self._counts = digests[order], table.column("count").to_numpy()[order]
        named_keys = pc.list_slice(table.column("keys"), 0, self.copies)
        self._kept = np.sort(packed(pc.list_flatten(named_keys)))
        self._made = made

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def writes(self) -> tuple[str, ...]:
        return ("text_count",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("text_count", pa.int64(), metadata={"units": "rows of the pool with this text"})])

    def process(self, batch: Batch) -> dict[str, Any]:
        texts = plain_texts(self.op, self.column, batch.table.column(self.column)).to_pylist()
        same = [normalised(text or "", **self._made) for text in texts]
        there = np.array([bool(text) for text in same], dtype=bool)
        counts = np.ones(len(same), dtype=np.int64)
        at, repeats = found_in(self._digests, as_bytes(digest_words(same)))
        counts[repeats] = self._counts[at[repeats]]
        _, kept = found_in(self._kept, packed(batch.table.column("key")))
        surplus = there & repeats & ~kept
        return {
            "text_count": pa.array(counts, mask=~there),
            "reject": ["text_duplicate" if extra else None for extra in surplus.tolist()],
        }
