"""One pass over the rows with both texts: verdicts of the judge, tokens, and bounded samples to measure and to show.

If the pool has more than READ_SHARDS shards, the pass reads that many, chosen by hash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.caption.compare.statistics import Wins
from curate.caption.report.columns import ANSWERED
from curate.caption.report.costs import Source, Usage, usage_of
from curate.caption.report.survey import MEASURED_ROWS, READ_SHARDS
from curate.core.hashing import ranks
from curate.core.view import View
from curate.kernels.reservoir import Reservoir

JUDGED = ("verdict", "ab", "ba")
"""Parts of the names of the judge's columns: the verdict over both orders, and the answer in each."""


@dataclass
class Compared:
    rows: int = 0
    """Rows that are not rejected."""
    left: int = 0
    """Rows that are rejected or in error, at any stage."""
    shards: int = 0
    of_shards: int = 0
    pairs: int = 0
    """Rows with both texts."""
    identical: int = 0
    """Pairs whose texts are equal."""
    verdicts: Counter[str] = field(default_factory=Counter)
    positions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Answers in both orders: (with `a` first, with `b` first)."""
    usage: dict[str, dict[Source, Usage]] = field(default_factory=dict)
    """By column of texts, and by the judge's column."""
    measured: list[dict[str, Any]] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)
    """Pairs with different texts, in the order of their hash."""

    @property
    def wins(self) -> Wins:
        found = self.verdicts
        return Wins(found["a"], found["b"], found["tie"], found["inconsistent"])

    @property
    def prefer_first(self) -> int:
        """Inconsistent samples in which the judge chose the text shown first, both times."""
        return self.positions["first", "first"]

    @property
    def prefer_second(self) -> int:
        return self.positions["second", "second"]


def columns(view: View, texts: Sequence[str], judge: str | None, more: Sequence[str]) -> list[str]:
    """Columns that the comparison reads; those of asking stages only if they exist."""
    known = view.columns()
    answered = [f"{name}_{part}" for name in (*texts, *([judge] if judge else [])) for part in ANSWERED]
    own = [judge, *(f"{judge}_{part}" for part in JUDGED)] if judge else []
    names = [*texts, *more, *own, *(name for name in answered if name in known), "rejected_by"]
    return list(dict.fromkeys(names))


def survey(
    view: View, texts: tuple[str, str], judge: str | None, similarities: Sequence[str], seed: int, show: int
) -> Compared:
    """`show`: pairs to show. Rows of the result have the texts, the similarities and the judge's columns."""
    a, b = texts
    found, measured, shown = Compared(of_shards=view.size()[0]), Reservoir(MEASURED_ROWS), Reservoir(show)
    for table in view.tables(columns(view, texts, judge, similarities), READ_SHARDS):
        found.shards += 1
        before = table.num_rows
        table = table.filter(pc.is_null(table.column("rejected_by")))
        found.rows += table.num_rows
        found.left += before - table.num_rows
        for name in (a, b, *([judge] if judge else [])):
            if f"{name}_outcome" in table.column_names:
                own = found.usage.setdefault(name, {})
                for source, usage in usage_of(table, name).items():
                    own[source] = own.get(source, Usage()) + usage
        table = table.filter(pc.and_(pc.is_valid(table.column(a)), pc.is_valid(table.column(b))))
        found.pairs += table.num_rows
        order = ranks(seed, table.column("key").to_pylist())
        measured.add(table, np.zeros(table.num_rows, np.int64), order)
        different = pc.not_equal(table.column(a), table.column(b)).to_numpy(zero_copy_only=False)
        found.identical += int((~different).sum())
        rows = np.flatnonzero(different)
        shown.add(table.take(rows), np.zeros(len(rows), np.int64), order[rows])
        if judge:
            _add_verdicts(found, table, judge)
    found.measured, found.shown = measured.rows().get(0, []), shown.rows().get(0, [])
    return found


def _add_verdicts(found: Compared, table: pa.Table, judge: str) -> None:
    verdict, ab, ba = (table.column(f"{judge}_{part}").to_pylist() for part in JUDGED)
    found.verdicts.update(one for one in verdict if one is not None)
    found.positions.update(pair for pair in zip(ab, ba, strict=True) if None not in pair)
