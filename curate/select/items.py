"""Base of the selections by entries of texts: each text is drawn independently, by hash(seed, key, position)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Select, Table
from curate.core.errors import CurateError, TargetError
from curate.core.hashing import ranks
from curate.kernels.entries import Entries, EntryIndex, entries_of, entries_of_lists, grouped, lists_of_entries
from curate.select.balance import drawn_copies, rarest, uniform

REASONS = pa.array(["no_text", "no_entry", "head_cut"])
"""A row without a text; a text without an entry; a text that the draw left out."""


@dataclass(frozen=True)
class EntryCounts:
    """The table of counts, commonest entry first, for lookups by entry, or by group and entry. Row K, one past the
    last, stands for every entry that was never counted, as the rarest of all."""

    index: EntryIndex
    groups: dict[str, int]
    counts: NDArray[np.int64]
    """(K + 1,): texts that have the entry; 1 for entries never counted."""
    group: NDArray[np.int64]
    """(K + 1,): group of each row; -1 for entries never counted."""
    keys: NDArray[np.int64]
    """(K,): group * entries + entry of each row, ascending; unused with one group, where entries are rows."""
    rows: NDArray[np.int64]
    """(K,): the rows in the order of `keys`."""

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """`table`: entry, by, count; commonest first."""
        entry, by = (table.column(name).combine_chunks().dictionary_encode() for name in ("entry", "by"))
        index = EntryIndex(entry.dictionary)
        groups = {name: number for number, name in enumerate(by.dictionary.to_pylist())}
        group = by.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        keys = group * max(1, len(index)) + entry.indices.to_numpy(zero_copy_only=False)
        rows = np.argsort(keys, kind="stable")
        counts = np.append(table.column("count").to_numpy(), 1)
        return cls(index, groups, counts, np.append(group, -1), keys[rows], rows)

    @property
    def unknown(self) -> int:
        """Row of the entries that were never counted."""
        return len(self.rows)

    def rows_of(self, found: Entries, group: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Row (P,) of each pair of `found`, whose entries are numbered by `index`. `group` (m,): group of each item by
        `groups`, -1 for an unknown one; None without groups."""
        if group is None:
            return found.entry  # in the order of the table; unknown entries have the number after the last
        wanted = group[found.item] * max(1, len(self.index)) + found.entry
        wanted[(group[found.item] < 0) | (found.entry == len(self.index))] = -1
        place = np.minimum(np.searchsorted(self.keys, wanted), max(0, len(self.keys) - 1))
        if not len(self.keys):
            return np.full(len(wanted), self.unknown)
        return np.where(self.keys[place] == wanted, self.rows[place], self.unknown)


class SelectItems(Select):
    """Draws each text of a row by its counted entries.

    Count the rows that the selection reads: `text.counts` also counts rows that a filter between the two stages
    rejects, and tombstoned rows. An entry that was never counted is as rare as one with a single text.

    The unit of a text is one plus the row of its rarest entry in the table of counts; 0 for a text without entries.
    """

    ports: ClassVar[dict[str, str]] = {"counts": "text_counts"}

    columns: tuple[str, ...] = Field(
        ("concepts",),
        min_length=1,
        description="Columns of entries, a list for each text of a row; an entry counts once.",
    )
    by: str | None = Field(
        None,
        description="Column of one word per row, such as `language`, by which texts were counted; null for none.",
    )
    seed: int = Field(0, ge=0, description="Seed of every draw.")

    _table: EntryCounts = PrivateAttr()

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if the counts are by another column."""
        by = artifacts["counts"]["summary"]["by"]
        if by != self.by:
            raise CurateError(
                f"{self.op}: by {self.by!r}, but its `counts` are by {by!r}; give both stages the same column, or none"
            )
        self._table = EntryCounts.from_table(artifacts["counts"]["counts"])

    def reads(self) -> tuple[str, ...]:
        return (*self.columns, *([self.by] if self.by else []))

    def deal(self, table: Table) -> Table:
        """A line per text, with `entries`: the rows of its entries in the table of counts. A row without a text has a
        line without a unit."""
        found = entries_of(table, self.columns, self._table.index)
        group = None
        if self.by:
            of_row, names = grouped(table, self.by)
            known = np.array([self._table.groups.get(name, -1) for name in names], dtype=np.int64)
            group = known[of_row[found.row]]
        numbers = self._table.rows_of(found, group)
        lines = {
            "row": found.row,
            "item": pa.array(found.place).cast(pa.string()),
            "unit": self._units(replace(found, entry=numbers)),
            "entries": lists_of_entries(found, numbers),
        }
        without_text = np.flatnonzero(np.bincount(found.row, minlength=table.num_rows) == 0)
        if not len(without_text):
            return pa.table(lines)
        rest = {"row": without_text, "item": ["0"] * len(without_text)}
        return pa.concat_tables([pa.table(lines), pa.table(rest)], promote_options="default").sort_by("row")

    def _units(self, found: Entries) -> NDArray[np.int64]:
        """Unit (m,) of each text."""
        return rarest(found.entry, found.item, len(found), empty=-1) + 1

    def _texts(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Texts (K + 1,) per row of the table of counts, from texts per unit. Raises TargetError if there are none."""
        texts = np.zeros(self._table.unknown + 2, dtype=np.int64)
        texts[: len(counts)] = counts
        if not texts[1:].sum():
            found = f"none of the {texts[0]:,} texts has an entry" if texts[0] else "no text with an entry"
            raise TargetError(
                f"{self.op}: {found} in {', '.join(self.columns)}; check the stages that write them, or loosen the "
                "filters upstream"
            )
        return texts[1:]

    def expected(self, found: Entries, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Expected copies (m,) of each text, whose entries are rows of the table of counts. `counts` (U,): texts per
        unit."""
        raise NotImplementedError

    def without_entry(self) -> float:
        """Expected copies of a text without an entry."""
        return 0.0

    def pick(self, lines: Table, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        found = entries_of_lists(lines.column("entries"))
        no_text = pc.is_null(lines.column("unit")).to_numpy()
        expected = np.where(found.matched, self.expected(found, counts), np.where(no_text, 0.0, self.without_entry()))
        place = lines.column("item").cast(pa.int64()).to_numpy()
        copies = drawn_copies(expected, uniform(ranks(self.seed, lines.column("key").to_pylist(), place)))
        reason = np.where(found.matched, 2, np.where(no_text, 0, 1))
        return {
            "copies": copies,
            "reject": REASONS.take(pa.array(reason, mask=copies > 0)),
            "expected": expected.astype(np.float32),
        }
