"""What selections by the entries of texts have in common: each text is drawn on its own, by hash(seed, key, place)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Select, Table
from curate.core.errors import CurateError, TargetError
from curate.core.hashing import ranks
from curate.kernels.entries import Entries, entries_of, entries_of_lists, grouped, listed
from curate.select.balance import drawn_copies, rarest, uniform
from curate.select.book import Book

REASONS = pa.array(["no_text", "no_entry", "head_cut"])
"""A row without a text that is there; a text without an entry; one that the draw has left out."""


class SelectItems(Select):
    """Draws each text of a row by what it has of the counted entries.

    Counts are `text.counts` as it was made: rows refused between it and the selection stay in them, so make it of the
    very rows that are chosen from; rows with a tombstone stay in them anyhow. An entry that was never counted stands
    for the rarest, of one text.

    Units are of texts: the row of its rarest entry in the table of counts, plus one; 0 for a text of none.
    """

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

    def deal(self, table: Table) -> Table:
        """A line per text, with `entries`: the rows of the table of counts that it has. A row without a text has a line
        of no unit."""
        found = entries_of(table, self.columns, self._book.index)
        group = None
        if self.by:
            of_row, names = grouped(table, self.by)
            known = np.array([self._book.groups.get(name, -1) for name in names], dtype=np.int64)
            group = known[of_row[found.row]]
        numbers = self._book.rows_of(found, group)
        lines = {
            "row": found.row,
            "item": pa.array(found.place).cast(pa.string()),
            "unit": self._units(replace(found, entry=numbers)),
            "entries": listed(found, numbers),
        }
        bare = np.flatnonzero(np.bincount(found.row, minlength=table.num_rows) == 0)
        if not len(bare):
            return pa.table(lines)
        none = {"row": bare, "item": ["0"] * len(bare)}
        return pa.concat_tables([pa.table(lines), pa.table(none)], promote_options="default").sort_by("row")

    def _units(self, found: Entries) -> NDArray[np.int64]:
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

    def expected(self, found: Entries, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Copies (m,) that each text is to give by chance; its entries are rows of the table of counts. `counts` (U,):
        texts per unit."""
        raise NotImplementedError

    def pick(self, lines: Table, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        found = entries_of_lists(lines.column("entries"))
        expected = np.where(found.matched, self.expected(found, counts), 0.0)
        place = lines.column("item").cast(pa.int64()).to_numpy()
        copies = drawn_copies(expected, uniform(ranks(self.seed, lines.column("key").to_pylist(), place)))
        reason = np.where(found.matched, 2, np.where(pc.is_null(lines.column("unit")), 0, 1))
        return {
            "copies": copies,
            "reject": REASONS.take(pa.array(reason, mask=copies > 0)),
            "expected": expected.astype(np.float32),
        }
