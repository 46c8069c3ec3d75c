"""One pass over the rows: counts of outcomes and checks, and bounded samples of rows to show and to measure.

If the pool has more than READ_SHARDS shards, the pass reads that many, chosen by hash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.caption.report.columns import CHOSEN, CHOSEN_FROM, TextColumn
from curate.caption.report.costs import Source, Usage, usage_of
from curate.core.hashing import mixed, ranks
from curate.core.ledger import Entry
from curate.core.view import View
from curate.kernels.reservoir import Reservoir

READ_SHARDS = 64
"""A page reads the tables of at most this many shards."""
MEASURED_ROWS = 10_000
"""Rows whose texts are measured, chosen by hash."""
OUTCOMES = ("ok", "truncated", "refused", "empty")


@dataclass
class Asked:
    """What became of every row at an asking stage. The parts add up to the rows."""

    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Rows in error or unusable at the stage, by reason."""
    no_answer: int = 0
    """Rows that needed no request; also errors that `keep_null` lets pass, if only some of the shards are read."""
    earlier: int = 0
    """Rows that left before the stage."""
    usage: dict[Source, Usage] = field(default_factory=dict)

    @property
    def reached(self) -> int:
        return self.outcomes.total() + self.errors.total() + self.no_answer

    @property
    def total(self) -> Usage:
        return sum(self.usage.values(), Usage())


@dataclass
class Surveyed:
    rows: int = 0
    reached: int = 0
    """Rows that reached a stage that asks. Chosen texts and measures are of these, so that texts before and after are
    of the same rows."""
    shards: int = 0
    of_shards: int = 0
    asked: dict[str, Asked] = field(default_factory=dict)
    """By text."""
    checks: dict[str, Counter[str]] = field(default_factory=dict)
    """Text -> reason of its check column -> rows; "" for texts that pass."""
    injections: dict[str, Counter[str]] = field(default_factory=dict)
    """Text -> sign by which it follows an order of its context -> rows; "" for texts that follow none."""
    flags: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Boolean column about a text -> rows where it is true, rows where it is not null."""
    chosen: Counter[str] = field(default_factory=Counter)
    """Text that was chosen -> rows; "" for rows without any."""
    measured: list[dict[str, Any]] = field(default_factory=list)
    samples: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """Cluster (-1 without clusters) -> rows to show."""
    clusters: Counter[int] = field(default_factory=Counter)
    """Rows of the clusters shown."""
    failures: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    """(text, reason) -> rows to show."""
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)


class Surveyor:
    """Adds up shards, in bounded memory."""

    def __init__(
        self, view: View, texts: Sequence[TextColumn], cluster: str | None, seed: int, sizes: tuple[int, int, int]
    ) -> None:
        """sizes: clusters to show, rows per cluster, rows per reason of a failure."""
        self.texts, self.cluster, self.seed = texts, cluster, seed
        self.order = {name: place for place, name in enumerate(view.stages)}
        places = [self.order[text.stage] for text in texts if text.asked and text.stage in self.order]
        self._first = min(places, default=0)
        self.found = Surveyed()
        self._strata, per_cluster, failures = sizes
        self._measured, self._failures = Reservoir(MEASURED_ROWS), Reservoir(failures)
        self._samples = Reservoir(per_cluster if cluster else per_cluster * self._strata)
        self._shown = np.zeros(0, np.int64)

    def add(self, table: pa.Table) -> None:
        order = ranks(self.seed, table.column("key").to_pylist())
        found = self.found
        found.rows += table.num_rows
        found.shards += 1
        for text in self.texts:
            if text.asked:
                self._add_outcomes(text, table)
            self._add_checks(text, table)
        rows = np.flatnonzero(~self._left_before(self._first, table).to_numpy(zero_copy_only=False))
        found.reached += len(rows)
        reached = table.take(rows)
        if CHOSEN_FROM in table.column_names:
            found.chosen += _counts(pc.fill_null(reached.column(CHOSEN_FROM), ""))
        names = [text.name for text in self.texts if not text.structured]
        self._measured.add(reached.select(["key", *names]), np.zeros(len(rows), np.int64), order[rows])
        self._add_samples(table, order)
        self._add_failures(table, order)

    def _add_outcomes(self, text: TextColumn, table: pa.Table) -> None:
        made = self.found.asked.setdefault(text.name, Asked())
        outcome = table.column(f"{text.name}_outcome")
        made.outcomes += _counts(outcome.drop_null())
        without = table.filter(pc.is_null(outcome))
        by, why = without.column("rejected_by"), without.column("reject_reason")
        here = pc.fill_null(pc.equal(by, text.stage or ""), False)
        errors = _counts(pc.fill_null(why.filter(here), "no reason"))
        earlier = int(pc.sum(self._left_before(self.order.get(text.stage or "", 0), without)).as_py() or 0)
        made.errors += errors
        made.earlier += earlier
        made.no_answer += without.num_rows - errors.total() - earlier
        for source, usage in usage_of(table, text.name).items():
            made.usage[source] = made.usage.get(source, Usage()) + usage

    def _left_before(self, place: int, table: pa.Table) -> pa.ChunkedArray:
        """Whether each row left before a stage, given by its place in the order."""
        before = pa.array([name for name, other in self.order.items() if other < place], pa.string())
        return pc.is_in(table.column("rejected_by").cast(pa.string()), value_set=before)

    def _add_checks(self, text: TextColumn, table: pa.Table) -> None:
        answered = table.filter(pc.is_valid(table.column(text.name)))
        for name, totals in ((text.check, self.found.checks), (text.injection, self.found.injections)):
            if name and pa.types.is_string(table.schema.field(name).type):
                reasons = _counts(pc.fill_null(answered.column(name), ""))
                totals[text.name] = totals.get(text.name, Counter()) + reasons
        for name in text.about:
            if pa.types.is_boolean(table.schema.field(name).type):
                column = table.column(name)
                true, known = self.found.flags.get(name, (0, 0))
                hits = int(pc.sum(column).as_py() or 0)
                self.found.flags[name] = (true + hits, known + table.num_rows - column.null_count)

    def _add_samples(self, table: pa.Table, order: NDArray[np.uint64]) -> None:
        """Rows with any synthetic text. The clusters of lowest hash are shown."""
        made = [text.name for text in self.texts[1:]] or [text.name for text in self.texts]
        some = np.zeros(table.num_rows, dtype=bool)
        for name in made:
            some |= pc.is_valid(table.column(name)).to_numpy(zero_copy_only=False)
        if self.cluster is None:
            rows = np.flatnonzero(some)
            self._samples.add(table.take(rows), np.full(len(rows), -1), order[rows])
            return
        ids = pc.fill_null(table.column(self.cluster).cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
        some &= ids >= 0
        known = np.unique(np.r_[self._shown, ids[some]])
        self._shown = known[np.argsort(mixed(known.astype(np.uint64) ^ np.uint64(self.seed)))][: self._strata]
        rows = np.flatnonzero(some & np.isin(ids, self._shown))
        self.found.clusters += Counter(ids[rows].tolist())
        self._samples.add(table.take(rows), ids[rows], order[rows])

    def _add_failures(self, table: pa.Table, order: NDArray[np.uint64]) -> None:
        places: dict[tuple[str, str], int] = {pair: number for number, pair in enumerate(self.found.failed)}
        for text in self.texts:
            reasons = _failures(text, table)
            rows = np.flatnonzero([reason is not None for reason in reasons])
            pairs = [(text.name, str(reasons[row])) for row in rows]
            self.found.failed.update(pairs)
            groups = np.array([places.setdefault(pair, len(places)) for pair in pairs], dtype=np.int64)
            self._failures.add(table.take(rows), groups, order[rows])

    def finish(self, view: View) -> Surveyed:
        found = self.found
        found.of_shards = view.size()[0]
        for text in self.texts:
            if text.stage and text.asked and found.shards == found.of_shards:
                found.asked[text.name] = with_kept_errors(found.asked[text.name], view.stages[text.stage].entry)
        found.measured = self._measured.rows().get(0, [])
        samples = self._samples.rows()
        shown = [-1] if self.cluster is None else self._shown.tolist()
        found.samples = {cluster: samples[cluster] for cluster in shown if cluster in samples}
        failures = self._failures.rows()
        found.failures = {pair: failures.get(number, []) for number, pair in enumerate(found.failed)}
        return found


def _failures(text: TextColumn, table: pa.Table) -> list[str | None]:
    """Why each row's text failed: its outcome, the error of its stage, or its check."""
    rows = table.num_rows
    outcome = table.column(f"{text.name}_outcome").to_pylist() if text.asked else [None] * rows
    check = table.column(text.check).to_pylist() if text.check else [None] * rows
    by = table.column("rejected_by").to_pylist() if text.stage else [None] * rows
    why = table.column("reject_reason").to_pylist() if text.stage else [None] * rows
    found: list[str | None] = []
    for place in range(rows):
        if outcome[place] not in (None, "ok"):
            found.append(outcome[place])
        elif outcome[place] is None and by[place] is not None and by[place] == text.stage:
            found.append(why[place] or "no reason")
        else:
            found.append(check[place] if isinstance(check[place], str) else None)
    return found


def with_kept_errors(asked: Asked, entry: Entry) -> Asked:
    """The counts of a whole pool with the errors that `keep_null` lets pass: rows do not tell them from those without a
    request, but the stage's ledger does."""
    errors = entry.unusable + entry.error
    left = asked.no_answer - (errors.total() - asked.errors.total())
    return replace(asked, errors=errors, no_answer=left) if entry.kept and left >= 0 else asked


def _counts(values: pa.ChunkedArray) -> Counter[str]:
    return Counter({line["values"]: line["counts"] for line in pc.value_counts(values).to_pylist()})


def survey(
    view: View, texts: Sequence[TextColumn], cluster: str | None, seed: int, sizes: tuple[int, int, int]
) -> Surveyed:
    """`sizes`: as of Surveyor."""
    surveyor = Surveyor(view, texts, cluster, seed, sizes)
    names = ["source_id", *(name for text in texts for name in text.columns), "rejected_by", "reject_reason"]
    names += [name for name in (cluster, CHOSEN_FROM, CHOSEN) if name is not None and name in view.columns()]
    for table in view.tables(list(dict.fromkeys(names)), READ_SHARDS):
        surveyor.add(table)
    return surveyor.finish(view)
