"""What selections by the entries of texts have in common: each text is drawn on its own, by hash(seed, key, place)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Select, Table
from curate.core.entries import Entries, entries_of, nested, numbered_of
from curate.core.errors import CurateError, TargetError
from curate.core.hashing import key_words, ranks_of_words
from curate.text.balance import drawn_copies, rarest, uniform
from curate.text.counts import grouped
from curate.text.counts_book import Book

REASONS = pa.array(["no_text", "no_entry", "head_cut"])
"""A row without a text that is there; a text without an entry; one that the draw has left out."""


class SelectItems(Select):
    """Draws each text of a row by what it has of the counted entries.

    Counts are `text.counts` as it was made: rows refused between it and the selection stay in them, so make it of the
    very rows that are chosen from; rows with a tombstone stay in them anyhow. An entry that was never counted stands
    for the rarest, of one text.

    Units are of texts: the row of its rarest entry in the table of counts, plus one; 0 for a text of none.
    """

    spread: ClassVar[bool] = True
    ports: ClassVar[dict[str, str]] = {"counts": "text_counts"}

    columns: tuple[str, ...] = Field(
        ("concepts",), min_length=1, description="Columns of entries, a list for each text of a row; taken together."
    )
    by: str | None = Field(
        None, description="Column of a word per row, such as `language`, that the counts are by; null if by none."
    )
    seed: int = Field(0, ge=0, description="Seed of every draw.")

    _book: Book = PrivateAttr()

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError where the counts are by something else."""
        by = artifacts["counts"]["summary"]["by"]
        if by != self.by:
            raise CurateError(
                f"{self.op}: by {self.by!r}, but its `counts` are by {by!r}; give both stages the same column, or none"
            )
        self._book = Book.of(artifacts["counts"]["counts"])

    def reads(self) -> tuple[str, ...]:
        return (*self.columns, *([self.by] if self.by else []))

    def dealt(self, table: Table) -> Table:
        """Key, and `entries`: the rows of the table of counts that each text has, as numbers."""
        found = entries_of(table, self.columns, self._book.index)
        group = None
        if self.by:
            of_row, names = grouped(table, self.by)
            known = np.array([self._book.groups.get(name, -1) for name in names], dtype=np.int64)
            group = known[of_row[found.row]]
        entries = nested(found, self._book.rows_of(found, group), table.num_rows)
        return table.select(["key"]).append_column("entries", entries)

    def counted(self, table: Table, units: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._item_units(numbered_of(table.column("entries")))

    def _item_units(self, found: Entries) -> NDArray[np.int64]:
        """Unit (m,) of each text."""
        return rarest(found.entry, found.item, len(found), empty=-1) + 1

    def _texts(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Texts (K + 1,) per row of the table of counts, out of those per unit. Raises TargetError where none is."""
        texts = np.zeros(self._book.unknown + 2, dtype=np.int64)
        texts[: len(counts)] = counts
        if not texts[1:].sum():
            said = f"none of the {texts[0]:,} texts that reach it has" if texts[0] else "no text reaches it that has"
            raise TargetError(
                f"{self.op}: {said} an entry in {', '.join(self.columns)}; look at what fills them, or loosen what "
                "refuses rows upstream"
            )
        return texts[1:]

    def expected(self, found: Entries) -> NDArray[np.float64]:
        """Copies (m,) that each text is to give by chance; its entries are rows of the table of counts."""
        raise NotImplementedError

    def pick(self, rows: Table, units: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        found = numbered_of(rows.column("entries"))
        matched = found.matched
        expected = np.where(matched, self.expected(found), 0.0)
        words = key_words(rows.column("key").to_pylist())[found.row]
        copies = drawn_copies(expected, uniform(ranks_of_words(self.seed, words, found.place)))
        bare = np.flatnonzero(np.bincount(found.row, minlength=rows.num_rows) == 0)
        order = np.argsort(np.concatenate([found.row, bare]), kind="stable") if len(bare) else slice(None)
        zeros = np.zeros(len(bare), dtype=np.int64)

        def in_order(values: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate([values, zeros])[order]

        copies = in_order(copies)
        reason = pa.array(in_order(np.where(matched, 2, 1)), mask=copies > 0)
        return {
            "row": np.concatenate([found.row, bare])[order],
            "item": pa.array(in_order(found.place)).cast(pa.string()),
            "copies": copies,
            "reject": REASONS.take(reason),
            "expected": in_order(expected).astype(np.float32),
            "unit": in_order(self._item_units(found)),
        }
