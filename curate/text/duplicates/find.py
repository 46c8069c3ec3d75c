"""Texts that a pool has more than once: `text.duplicates` counts them, `text.copies` says how often each row's text
occurs and whether the row is one of those to keep, `text.drop_duplicates` keeps so many rows of each.

The web repeats itself: templates, quotes, products. Counting looks at the whole pool; dropping compares numbers, so
another number of copies computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from curate.core.stretches import (
    SHARD,
    SHARDS,
    Stretches,
    as_bytes,
    found_in,
    packed_keys,
    part_of,
    shard_index,
    shard_words,
    starts_of,
    store,
)
from curate.text.duplicates.kernels import digest_words, distinct, most, normalised, repeated
from curate.text.language.language import plain_texts

KIND = "text_sets"
COUNTS, NAMED, REPEATED = "counts", "named", "repeated"
"""What is stored: by stretch of shards, how often each of its texts occurs, and its rows that are to be kept; by bucket
of digests, all texts that repeat."""
KEEPERS = "keepers"
"""Field metadata of `text_copy`: rows that the sets name of each text."""
MOST_BUCKETS, BUCKET_ROWS = 4096, 1 << 16
LISTED = 10_000
"""Texts in the artifact's table."""
EXAMPLE_BYTES = 96
Shared = Mapping[str, Any]


class FindTextDuplicates(Fit):
    """Texts that occur more than once, after case folding, NFKC, and folding of white space and punctuation.

    The artifact: `texts`, the 10,000 most frequent, in this order: `digest` (128 bits, of the normalised text),
    `count`, `example` (a row's text, up to 96 bytes), `keys` (the `keepers` rows of the smallest hash(seed, key)); and
    `summary`: `rows` with a text, `texts` that differ, `repeated` ones, `surplus` rows beyond the first of each,
    `largest` count. `text.copies` reads what the parts store.
    """

    op: ClassVar[str] = "text.duplicates"
    version: ClassVar[int] = 3
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
            SHARD: shard_words(table)[there],
            "key": key_words(keys),
            "digest": digest_words([same[place] for place in there]),
            "example": np.array([_clipped(texts[place]) for place in there], dtype=f"S{EXAMPLE_BYTES}"),
        }

    def fit(self, group: Group) -> Artifact:
        starts = starts_of(group)
        count = min(MOST_BUCKETS, max(1, int(starts[-1]) // BUCKET_ROWS))
        group.tell(0.0, "texts go to the buckets of their digests")
        buckets = group.partition("digests", _to_buckets, count, starts=starts, buckets=count)
        told = {"repeated": 0, "surplus": 0, "largest": 0}
        listed: list[NDArray[Any]] = []
        group.tell(0.4, "texts are counted")
        for top, counts in buckets.each(_repeated, seed=self.seed, keepers=self.keepers, listed=LISTED):
            listed = _most([listed, top])
            told["repeated"] += counts["repeated"]
            told["surplus"] += counts["surplus"]
            told["largest"] = max(told["largest"], counts["largest"])
        group.tell(0.6, "counts go back to the rows")
        back = {"starts": starts, "seed": self.seed, "keepers": self.keepers}
        store(buckets.partition("counts-by-part", _counts, len(group.rows), **back), COUNTS)
        store(buckets.partition("named-by-part", _named, len(group.rows), **back), NAMED)
        group.tell(0.9, "examples are fetched")
        summary = {
            "rows": int(starts[-1]),
            "texts": int(starts[-1]) - told["surplus"],
            **told,
            "made": {name: getattr(self, name) for name in ("column", "punctuation", "digits", "keepers")},
            "buckets": count,
        }
        return {"texts": _texts(group, listed, starts), SHARDS: shard_index(group), "summary": summary}


def _most(found: list[list[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Of lists of texts (digest, count, keys, row), the most frequent."""
    joined = [np.concatenate(arrays) for arrays in zip(*(texts for texts in found if texts), strict=True)]
    order = most(joined[0], joined[1], LISTED)
    return [array[order] for array in joined]


def _texts(group: Group, listed: list[NDArray[Any]], starts: NDArray[np.int64]) -> pa.Table:
    digest, times, keys, row = listed
    by_row = np.argsort(row)
    examples = np.empty(len(row), dtype=f"S{EXAMPLE_BYTES}")
    examples[by_row] = np.concatenate(list(group.each(_examples, rows=row[by_row], starts=starts)))
    return pa.table(
        {
            "digest": pa.array(keys_of_words(digest), pa.string()),
            "count": times,
            "example": pa.array([e.decode("utf-8", "ignore") for e in examples.tolist()], pa.string()),
            "keys": _key_lists(keys, times),
        }
    )


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
    return _bucket(digest, shared["buckets"]), arrays


def _bucket(digest: NDArray[np.uint64], buckets: int) -> NDArray[np.int64]:
    return (digest[:, 0] % np.uint64(buckets)).astype(np.int64)


def _repeated(part: Part, shared: Shared) -> tuple[list[NDArray[Any]], dict[str, int]]:
    """The most frequent of the bucket's texts: digest (m, 2), count (m,), keys (m, keepers, 2) and the first keeper's
    row (m,); and counts. Stores all that repeat."""
    digest, key, row = (np.asarray(part.arrays[name]) for name in ("digest", "key", "row"))
    count, rows = repeated(digest, key, shared["seed"], shared["keepers"])
    told = {"repeated": len(count), "surplus": int((count - 1).sum()), "largest": int(count.max(initial=0))}
    texts = digest[rows[:, 0]]
    part.store(REPEATED, {"key": as_bytes(texts), "count": count})
    order = most(texts, count, shared["listed"])
    return [texts[order], count[order], key[rows[order]], row[rows[order, 0]]], told


def _counts(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    """Each text of the bucket to each part that has it: `key`, which is its digest, and `count`."""
    digest, row = np.asarray(part.arrays["digest"]), np.asarray(part.arrays["row"])
    home = part_of(shared["starts"], row)
    first, count = distinct(digest, home)
    return home[first], {"key": as_bytes(digest[first]), "count": count}


def _named(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    """The rows that are to be kept of the texts that repeat, each to its part: `key`, and `place` from 1 on."""
    digest, key, row = (np.asarray(part.arrays[name]) for name in ("digest", "key", "row"))
    _, rows = repeated(digest, key, shared["seed"], shared["keepers"])
    there = rows >= 0
    place = np.broadcast_to(np.arange(1, rows.shape[1] + 1, dtype=np.int8), rows.shape)[there]
    chosen = rows[there]
    return part_of(shared["starts"], row[chosen]), {"key": as_bytes(key[chosen]), "place": place}


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
    by_shard: ClassVar[bool] = True

    column: str = Field("text", description="Column of the texts, as `text.duplicates` has read it.")

    _sets: Any = PrivateAttr(None)
    """The artifact."""
    _counts: Any = PrivateAttr(None)
    """Stretches of how often texts occur, and (`_named`) of the rows that are to be kept."""
    _named: Any = PrivateAttr(None)
    _made: Any = PrivateAttr(None)
    """How texts were normalised, and what the summary says beside that."""

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError where the sets are of another column, or made by an older version."""
        sets = artifacts["sets"]
        summary = sets["summary"]
        if self.column != (column := summary["made"]["column"]):
            raise CurateError(
                f"{self.op}.column: {self.column!r}, but its sets are of the texts in {column!r}; name that column, or "
                f"sets made of {self.column!r}"
            )
        if SHARDS not in sets:
            raise CurateError(f"{self.op}.sets: an older version of curate made these sets; make them again")
        self._sets, self._made = sets, {**summary["made"], "buckets": summary["buckets"]}
        self._counts, self._named = Stretches(sets, COUNTS), Stretches(sets, NAMED)

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        known = {} if self._made is None else {KEEPERS: str(self._made["keepers"])}
        count, copy = {"units": "rows of the pool with this text"}, {"of": "1-based place among the rows to keep"}
        fields = [pa.field("text_count", pa.int64(), metadata=count)]
        return pa.schema([*fields, pa.field("text_copy", pa.int32(), metadata=copy | known)])

    def process(self, batch: Batch) -> dict[str, Any]:
        assert self._made is not None, "setup comes first"
        texts = plain_texts(self.op, self.column, batch.table.column(self.column)).to_pylist()
        how = {name: self._made[name] for name in ("punctuation", "digits")}
        same = [normalised(text or "", **how) for text in texts]
        there = np.array([place for place, text in enumerate(same) if text], dtype=np.int64)
        counts, copies = np.ones(len(same), dtype=np.int64), np.ones(len(same), dtype=np.int32)
        if len(there):
            table = batch.table.take(pa.array(there))
            counts[there] = self._times(table, digest_words([same[place] for place in there]))
            repeats = np.flatnonzero(counts[there] > 1)
            copies[there[repeats]] = self._places(table.take(pa.array(repeats)))
        absent = np.ones(len(same), dtype=bool)
        absent[there] = False
        return {"text_count": pa.array(counts, mask=absent), "text_copy": pa.array(copies, mask=absent)}

    def _times(self, table: pa.Table, digest: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How often each text (n,) occurs in the pool; 1 where the sets do not know of it. Of rows that the sets have
        seen, their stretch says it; of others, the bucket of the digest."""
        wanted = as_bytes(digest)
        counts = np.zeros(len(wanted), dtype=np.int64)
        for rows, held in self._counts.only(table):
            at, known = found_in(held["key"], wanted[rows])
            counts[rows[known]] = held["count"][at[known]]
        rest = np.flatnonzero(counts == 0)
        for bucket, mine in _by_bucket(digest[rest], self._made["buckets"]):
            held = self._sets.part(REPEATED, bucket)
            at, known = found_in(held["key"], wanted[rest[mine]])
            counts[rest[mine[known]]] = held["count"][at[known]]
        return np.maximum(counts, 1)

    def _places(self, table: pa.Table) -> NDArray[np.int32]:
        """Place (n,) of each row among those to keep of its text; one more than there are for the others."""
        keys = packed_keys(table.column("key"))
        places = np.full(len(keys), self._made["keepers"] + 1, dtype=np.int32)
        for rows, held in self._named.of(table):
            at, known = found_in(held["key"], keys[rows])
            places[rows[known]] = held["place"][at[known]]
        return places


def _by_bucket(digest: NDArray[np.uint64], buckets: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(bucket, places of its digests)."""
    bucket = _bucket(digest, buckets)
    for one in np.unique(bucket).tolist():
        yield one, np.flatnonzero(bucket == one)


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
