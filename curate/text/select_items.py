"""What selections by the entries of texts have in common: each text is drawn on its own, by hash(seed, key, place)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.entries import Entries, entries_of
from curate.core.errors import CurateError, TargetError
from curate.core.hashing import key_words, ranks_of_words
from curate.core.stage import Artifact, Select, Table
from curate.text.balance import drawn_copies, rarest, uniform
from curate.text.counts import grouped
from curate.text.counts_book import Book

REASONS = pa.array(["no_text", "no_entry", "head_cut"])
"""A row without a text that is there; a text without an entry; one that the draw has left out."""
PICKED = pa.schema(
    {
        "row": pa.int64(),
        "item": pa.string(),
        "copies": pa.int64(),
        "reject": pa.string(),
        "expected": pa.float32(),
        "unit": pa.int64(),
    }
)
STEP_ROWS = 1 << 17
"""Rows that are looked at together: bounds what a bucket takes beside its own table."""


class SelectItems(Select):
    """Draws each text of a row by what it has of the counted entries.

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

    def counted(self, table: Table, units: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([np.zeros(0, np.int64), *(self._item_units(f, r) for _, f, r in self._seen(table))])

    def _item_units(self, found: Entries, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Unit (m,) of each text; `rows` (P,) of the table of counts are those of its entries."""
        return rarest(rows, found.item, len(found), empty=-1) + 1

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

    def expected(self, found: Entries, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Copies (m,) that each text is to give by chance; `rows` (P,) of the table of counts are its entries'."""
        raise NotImplementedError

    def pick(self, rows: Table, units: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        parts = [PICKED.empty_table()]
        for start, found, entries in self._seen(rows):
            parts.append(self._drawn(rows.slice(start, STEP_ROWS), start, found, entries))
        whole = pa.concat_tables(parts)
        numbers = {name: whole.column(name).to_numpy() for name in ("row", "copies", "expected", "unit")}
        return numbers | {name: whole.column(name).combine_chunks() for name in ("item", "reject")}

    def _drawn(self, table: Table, start: int, found: Entries, rows: NDArray[np.int64]) -> Table:
        """What is picked of some rows, the first of which is `start`; a row without a text has a line too."""
        matched = found.matched
        expected = np.where(matched, self.expected(found, rows), 0.0)
        words = key_words(table.column("key").to_pylist())[found.row]
        copies = drawn_copies(expected, uniform(ranks_of_words(self.seed, words, found.place)))
        bare = np.flatnonzero(np.bincount(found.row, minlength=table.num_rows) == 0)
        zeros = np.zeros(len(bare), dtype=np.int64)
        row, reason = np.concatenate([found.row, bare]), np.concatenate([np.where(matched, 2, 1), zeros])
        copies = np.concatenate([copies, zeros])
        columns = {
            "row": row + start,
            "item": pa.array(np.concatenate([found.place, zeros])).cast(pa.string()),
            "copies": copies,
            "reject": REASONS.take(pa.array(reason, mask=copies > 0)),
            "expected": np.concatenate([expected, zeros]).astype(np.float32),
            "unit": np.concatenate([self._item_units(found, rows), zeros]),
        }
        made = pa.table(columns, schema=PICKED)
        return made.take(pa.array(np.argsort(row, kind="stable"))) if len(bare) else made

    def _seen(self, table: Table) -> Iterator[tuple[int, Entries, NDArray[np.int64]]]:
        """(first row, its texts and their entries, row (P,) of the table of counts of each) of stretches of a table."""
        for start in range(0, table.num_rows, STEP_ROWS):
            part = table.slice(start, STEP_ROWS)
            found = entries_of(part, self.columns, self._book.index)
            group = None
            if self.by:
                of_row, names = grouped(part, self.by)
                known = np.array([self._book.groups.get(name, -1) for name in names], dtype=np.int64)
                group = known[of_row[found.row]]
            yield start, found, self._book.rows_of(found, group)
