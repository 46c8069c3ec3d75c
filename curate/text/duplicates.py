"""Texts that a pool has more than once: `text.duplicates` counts them, `text.copies` says how often each row's text
occurs and whether the row is one of those to keep, `text.drop_duplicates` keeps so many rows of each.

The web repeats itself: templates, quotes, products. Counting looks at the whole pool; dropping compares numbers, so
another number of copies computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Batch, Filter, Fit, Map, Table
from curate.core.errors import CurateError
from curate.core.group import Arrays, Group, Part
from curate.core.hashing import key_words, keys_of_words
from curate.text.duplicates_kernels import as_bytes, digest_words, found_in, normalised, packed, repeated
from curate.text.language import plain_texts

KIND = "text_sets"
KEEPERS = "keepers"
"""Field metadata of `text_copy`: rows that the sets name of each text."""
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


class TextCopies(Map):
    """How often each row's text occurs in the pool (`text_count`), and the row's place among those to keep of it.

    `text_copy` counts from 1: the places of the rows that the sets name; one more than there are names for all other
    rows of the text; 1 where a text occurs once. Both are null without a text. Sets and copies must have the same
    `from`: a named row that is rejected in between takes its text with it.
    """

    op: ClassVar[str] = "text.copies"
    ports: ClassVar[dict[str, str]] = {"sets": KIND}
    batch_rows: ClassVar[int] = 4096

    column: str = Field("text", description="Column of the texts, as `text.duplicates` has read it.")

    _digests: NDArray[np.bytes_] = PrivateAttr()
    _counts: NDArray[np.int64] = PrivateAttr()
    _named: NDArray[np.bytes_] = PrivateAttr()
    """Keys of all rows that the sets name, sorted."""
    _places: NDArray[np.int8] = PrivateAttr()
    """Place of each of them among the rows of its text, from 1 on."""
    _keepers: int | None = PrivateAttr(None)
    _made: dict[str, bool] = PrivateAttr()

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError where the sets are of another column."""
        table, made = artifacts["sets"]["texts"], dict(artifacts["sets"]["summary"]["made"])
        if self.column != (column := made.pop("column")):
            raise CurateError(
                f"{self.op}.column: {self.column!r}, but its sets are of the texts in {column!r}; name that column, or "
                f"sets made of {self.column!r}"
            )
        digests = packed(table.column("digest"))
        order = np.argsort(digests)
        self._digests, self._counts = digests[order], table.column("count").to_numpy()[order]
        self._keepers, self._made = made.pop("keepers"), made
        lengths = pc.list_value_length(table.column("keys")).to_numpy()
        places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
        named = packed(pc.list_flatten(table.column("keys")))
        order = np.argsort(named)
        self._named, self._places = named[order], places[order].astype(np.int8)

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        known = {} if self._keepers is None else {KEEPERS: str(self._keepers)}
        count, copy = {"units": "rows of the pool with this text"}, {"of": "1-based place among the rows to keep"}
        fields = [pa.field("text_count", pa.int64(), metadata=count)]
        return pa.schema([*fields, pa.field("text_copy", pa.int32(), metadata=copy | known)])

    def process(self, batch: Batch) -> dict[str, Any]:
        assert self._keepers is not None, "setup comes first"
        texts = plain_texts(self.op, self.column, batch.table.column(self.column)).to_pylist()
        same = [normalised(text or "", **self._made) for text in texts]
        absent = np.array([not text for text in same], dtype=bool)
        counts, copies = np.ones(len(same), dtype=np.int64), np.ones(len(same), dtype=np.int32)
        at, repeats = found_in(self._digests, as_bytes(digest_words(same)))
        counts[repeats] = self._counts[at[repeats]]
        place, named = found_in(self._named, packed(batch.table.column("key")))
        copies[repeats] = self._keepers + 1
        copies[repeats & named] = self._places[place[repeats & named]]
        return {"text_count": pa.array(counts, mask=absent), "text_copy": pa.array(copies, mask=absent)}


class DropTextDuplicates(Filter):
    """Rejects the rows of a text beyond so many copies, by the column of `text.copies`. Rows without a text stay.

    Rejects: text_duplicate.
    """

    op: ClassVar[str] = "text.drop_duplicates"

    copies: int = Field(1, ge=1, description="Rows kept of each text; at most `keepers` of `text.duplicates`.")

    def reads(self) -> tuple[str, ...]:
        return ("text_copy",)

    def keep(self, table: Table) -> pa.ChunkedArray:
        """Raises CurateError where more copies are wanted than the sets name rows."""
        named = (table.schema.field("text_copy").metadata or {}).get(KEEPERS.encode())
        if named is None:
            raise CurateError(
                f"{self.op}: 'text_copy' does not say how many rows of a text are named; use `text.copies`"
            )
        if self.copies > int(named):
            raise CurateError(
                f"{self.op}.copies: {self.copies}, but the sets name {int(named)} rows of a text; "
                f"give text.duplicates keepers: {self.copies}"
            )
        surplus = pc.greater(table.column("text_copy"), self.copies)
        return pc.if_else(pc.fill_null(surplus, False), "text_duplicate", pa.scalar(None, pa.string()))
