"""`text.copies`: how often each row's text occurs, and the row's place among those to keep. `text.drop_duplicates`:
rejects rows beyond a number of copies. It only compares places, so that another number recomputes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Batch, Filter, Map, Table
from curate.core.errors import CurateError
from curate.core.row_lookup import SHARDS, RowLookup, as_bytes, found_in, packed_keys
from curate.text.columns import plain_texts
from curate.text.duplicates.find import COUNTS, KIND, NAMED, REPEATED, bucket_of
from curate.text.duplicates.kernels import digest_words, normalised

KEEPERS = "keepers"
"""Field metadata of `text_copy`: rows listed per text."""


class TextCopies(Map):
    """Count how often each row's text occurs in the pool, and number the rows of each text that may be kept.

    `text_copy` is the place, from 1 on, of a row that the sets list; `keepers` + 1 for the other rows of a repeated
    text; 1 for a text that occurs once. Both columns are null without a text. The stage must have the same `from` as
    its sets: if a stage in between rejects a listed row, no other row replaces it.
    """

    op: ClassVar[str] = "text.copies"
    ports: ClassVar[dict[str, str]] = {"sets": KIND}
    batch_rows: ClassVar[int] = 4096
    by_shard: ClassVar[bool] = True

    column: str = Field("text", description="Column of texts that `text.duplicates` read.")

    _sets: Any = PrivateAttr(None)
    """The artifact."""
    _counts: Any = PrivateAttr(None)
    """Counts of texts, per range of shards."""
    _keepers: Any = PrivateAttr(None)
    """Rows to keep, per range of shards."""
    _settings: Any = PrivateAttr(None)
    """Settings of `text.duplicates`, and its number of buckets."""

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if the sets are of another column, or from an older version."""
        sets = artifacts["sets"]
        summary = sets["summary"]
        if self.column != (column := summary["made"]["column"]):
            raise CurateError(
                f"{self.op}.column: {self.column!r}, but its sets are of column {column!r}; name that column, or sets "
                f"of {self.column!r}"
            )
        if SHARDS not in sets:
            raise CurateError(f"{self.op}.sets: written by an older version of curate; rerun text.duplicates")
        self._sets, self._settings = sets, {**summary["made"], "buckets": summary["buckets"]}
        self._counts, self._keepers = RowLookup(sets, COUNTS), RowLookup(sets, NAMED)

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        known = {} if self._settings is None else {KEEPERS: str(self._settings["keepers"])}
        count, copy = {"units": "rows of the pool with this text"}, {"of": "1-based place among the rows to keep"}
        fields = [pa.field("text_count", pa.int64(), metadata=count)]
        return pa.schema([*fields, pa.field("text_copy", pa.int32(), metadata=copy | known)])

    def process(self, batch: Batch) -> dict[str, Any]:
        assert self._settings is not None, "call setup first"
        texts = plain_texts(self.op, self.column, batch.table.column(self.column)).to_pylist()
        options = {name: self._settings[name] for name in ("punctuation", "digits")}
        same = [normalised(text or "", **options) for text in texts]
        with_text = np.array([place for place, text in enumerate(same) if text], dtype=np.int64)
        counts, copies = np.ones(len(same), dtype=np.int64), np.ones(len(same), dtype=np.int32)
        if len(with_text):
            table = batch.table.take(pa.array(with_text))
            counts[with_text] = self._times(table, digest_words([same[place] for place in with_text]))
            repeats = np.flatnonzero(counts[with_text] > 1)
            copies[with_text[repeats]] = self._places(table.take(pa.array(repeats)))
        absent = np.ones(len(same), dtype=bool)
        absent[with_text] = False
        return {"text_count": pa.array(counts, mask=absent), "text_copy": pa.array(copies, mask=absent)}

    def _times(self, table: pa.Table, digest: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How often each text (n,) occurs in the pool; 1 if it is not in the sets. Rows that were counted are looked up
        by their range of shards, other rows by the bucket of their digest."""
        wanted = as_bytes(digest)
        counts = np.zeros(len(wanted), dtype=np.int64)
        for rows, held in self._counts.known_rows(table):
            at, known = found_in(held["key"], wanted[rows])
            counts[rows[known]] = held["count"][at[known]]
        rest = np.flatnonzero(counts == 0)
        for bucket, mine in _by_bucket(digest[rest], self._settings["buckets"]):
            held = self._sets.part(REPEATED, bucket)
            at, known = found_in(held["key"], wanted[rest[mine]])
            counts[rest[mine[known]]] = held["count"][at[known]]
        return np.maximum(counts, 1)

    def _places(self, table: pa.Table) -> NDArray[np.int32]:
        """Place (n,) of each row among those to keep of its text; `keepers` + 1 for the others."""
        keys = packed_keys(table.column("key"))
        places = np.full(len(keys), self._settings["keepers"] + 1, dtype=np.int32)
        for rows, held in self._keepers.files(table):
            at, known = found_in(held["key"], keys[rows])
            places[rows[known]] = held["place"][at[known]]
        return places


def _by_bucket(digest: NDArray[np.uint64], buckets: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(bucket, indices of its digests)."""
    bucket = bucket_of(digest, buckets)
    for one in np.unique(bucket).tolist():
        yield one, np.flatnonzero(bucket == one)


class DropTextDuplicates(Filter):
    """Reject the rows of a text beyond `copies`, by the column of `text.copies`.

    Rows without a text are kept. Rejects: text_duplicate.
    """

    op: ClassVar[str] = "text.drop_duplicates"

    copies: int = Field(1, ge=1, description="Rows kept per text; at most `keepers` of `text.duplicates`.")

    def reads(self) -> tuple[str, ...]:
        return ("text_copy",)

    def keep(self, table: Table) -> pa.ChunkedArray:
        """Raises CurateError for more copies than the sets list."""
        named = (table.schema.field("text_copy").metadata or {}).get(KEEPERS.encode())
        if named is None:
            raise CurateError(
                f"{self.op}: column 'text_copy' has no metadata {KEEPERS!r}; use the column of `text.copies`"
            )
        if self.copies > int(named):
            raise CurateError(
                f"{self.op}.copies: {self.copies}, but the sets list {int(named)} rows per text; "
                f"set `keepers: {self.copies}` of text.duplicates"
            )
        surplus = pc.greater(table.column("text_copy"), self.copies)
        return pc.if_else(pc.fill_null(surplus, False), "text_duplicate", pa.scalar(None, pa.string()))
