"""`text.counts`: the number of texts with each entry (concept, word of a vocabulary, hashtag) in the whole pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Artifact, Reduce, Table
from curate.kernels.entries import entries_of, grouped

STATE = pa.schema(
    [
        pa.field("entry", pa.string()),
        pa.field("by", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("matched", pa.int64(), nullable=False),
    ]
)
"""A row per group and entry. A row without an entry has a group's totals: `count` texts, `matched` with any entry."""
COUNTS = pa.schema(
    [
        pa.field("entry", pa.string(), metadata={"of": "what texts have: a concept, a word, a tag"}),
        pa.field("by", pa.string(), metadata={"of": "the group of rows, such as a language; empty without groups"}),
        pa.field("count", pa.int64(), metadata={"unit": "texts"}),
    ]
)
MERGED_ROWS = 1 << 22
"""State rows in memory before they are summed."""


class TextCounts(Reduce):
    """Count the texts with each entry, for the balance of `select.frequency` and `select.metaclip`.

    A text is an item of a row (a sentence). It counts once for an entry that several columns have. The artifact:
    `counts`, commonest first, and a `summary` of totals.
    """

    op: ClassVar[str] = "text.counts"
    kind: ClassVar[str] = "text_counts"

    columns: tuple[str, ...] = Field(
        ("concepts",),
        min_length=1,
        description="Columns of entries, a list for each text of a row; an entry counts once.",
    )
    by: str | None = Field(
        None, description="Column of one word per row, such as `language`, by which to count separately (MetaCLIP 2)."
    )

    def reads(self) -> tuple[str, ...]:
        return (*self.columns, *([self.by] if self.by else []))

    def partial(self, table: Table) -> Table:
        found = entries_of(table, self.columns)
        of_row, groups = grouped(table, self.by)
        group = of_row[found.row]
        size = max(1, len(found.names))
        keys, counts = _tally(group[found.item] * size + found.entry)
        entry = pa.array(found.names, pa.string()).take(pa.array(keys % size))
        texts, matched = (np.bincount(part, minlength=len(groups)) for part in (group, group[found.matched]))
        held = np.flatnonzero(texts)
        names = pa.array(groups, pa.string())
        return pa.table(
            {
                "entry": pa.concat_arrays([pa.nulls(len(held), pa.string()), entry]),
                "by": names.take(pa.array(np.concatenate([held, keys // size]))),
                "count": np.concatenate([texts[held], counts]),
                "matched": np.concatenate([matched[held], np.zeros(len(keys), np.int64)]),
            },
            schema=STATE,
        )

    def merge(self, states: Iterator[Table]) -> Table:
        """Sums states as they arrive; holds up to a row per entry, plus MERGED_ROWS."""
        parts, rows, least = [STATE.empty_table()], 0, MERGED_ROWS
        for state in states:
            parts.append(state.select(STATE.names).cast(STATE))
            rows += state.num_rows
            if rows > least:
                parts = [summed(parts)]
                rows = parts[0].num_rows
                least = max(MERGED_ROWS, 2 * rows)
        return summed(parts)

    def finish(self, state: Table) -> Artifact:
        with_entry = pc.is_valid(state.column("entry"))
        order = [("count", "descending"), ("entry", "ascending"), ("by", "ascending")]
        counts = state.filter(with_entry).sort_by(order).select(COUNTS.names).cast(COUNTS)
        totals = state.filter(pc.invert(with_entry)).sort_by("by").to_pylist()
        entries = counts.group_by("by", use_threads=False).aggregate([("count", "sum"), ("count", "count")])
        per = {row["by"]: (row["count_sum"], row["count_count"]) for row in entries.to_pylist()}
        groups = {row["by"]: _facts(row["count"], row["matched"], *per.get(row["by"], (0, 0))) for row in totals}
        whole = {name: sum(facts[name] for facts in groups.values()) for name in ("texts", "matched", "matches")}
        whole["entries"] = pc.count_distinct(counts.column("entry")).as_py()
        summary: dict[str, Any] = {"columns": list(self.columns), "by": self.by, **whole}
        return {"counts": counts, "summary": summary | ({"groups": groups} if self.by else {})}


def _facts(texts: int, matched: int, matches: int, entries: int) -> dict[str, int]:
    return {"texts": texts, "matched": matched, "matches": matches, "entries": entries}


def _tally(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct keys >= 0, ascending, and the count of each."""
    if keys.max(initial=0) > 4 * len(keys) + 1024:
        found = np.unique(keys, return_counts=True)
        return found[0], found[1]
    counts = np.bincount(keys)
    keys = np.flatnonzero(counts)
    return keys, counts[keys]


def summed(parts: list[Table]) -> Table:
    """States -> one state with a row per group and entry."""
    whole = pa.concat_tables(parts).group_by(["entry", "by"], use_threads=False)
    found = whole.aggregate([("count", "sum"), ("matched", "sum")])
    return found.select(["entry", "by", "count_sum", "matched_sum"]).rename_columns(STATE.names).cast(STATE)
