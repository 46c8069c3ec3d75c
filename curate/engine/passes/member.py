"""Members of a pass: how far each has got over a unit's rows, and the fate of every row there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.contracts import Filter, Map
from curate.core.errors import CurateError, InputError
from curate.core.ledger import Entry, ItemEntry
from curate.core.nouns.masks import NO_ITEM, NO_ITEMS, Fate, item_counts
from curate.core.rows import Rows
from curate.core.secrets import redact
from curate.engine.passes.answers.log import Log
from curate.engine.passes.task import PassStage, PassTask, StageResult
from curate.engine.passes.unit import Unit, UnitFacts
from curate.engine.tasks import beat


class PassMember:
    """A Filter or a Map of a pass. Rows before `resolved` have their fate in `after`."""

    facts: UnitFacts | None = None
    """A Map's facts."""

    def __init__(self, task: PassTask, spec: PassStage, unit: Unit, near: Mapping[str, PassMember]) -> None:
        """`near`: the members that this one depends on directly."""
        self.task, self.spec, self.unit, self.name = task, spec, unit, spec.name
        self.stage: Map | Filter = spec.stage
        self.inputs = [near[name] for name in spec.inputs]
        self.makers = {column: made for column, name in spec.makers.items() if (made := near[name].facts) is not None}
        """Column -> the facts of the member that writes it."""
        self.near = list(near.values())
        self.logs: list[Log] = list({id(log): log for member in self.near for log in member.logs}.values())
        """Logs of the costly results that this member's are computed from."""
        self.depends: set[str] = {name for member in self.near for name in (member.name, *member.depends)}
        self.before, self.after = Fate.all_alive(unit.rows), Fate.all_alive(unit.rows)
        self.after.at = spec.place
        first, self.last = task.only or (0, unit.rows)
        self.cursor = self.resolved = first
        self.seconds = 0.0
        self._computed = 0
        """Results of the unit at the last `report`."""

    @contextmanager
    def named(self) -> Iterator[None]:
        """Add the stage's name and its place in the recipe to errors about its parameters and inputs."""
        try:
            yield
        except CurateError as error:
            if type(error) not in (CurateError, InputError):
                raise
            raise type(error)(f"{self.spec.where or 'pipeline'}: {self.name}: {error}") from error

    def advance(self, stop: int) -> Iterable[None]:
        """Go over the rows before `stop`, as far as the members before this one have got; yields after each batch."""
        raise NotImplementedError

    def flush(self) -> Iterable[None]:
        """Compute the remaining rows; yields after each batch."""
        return ()

    def report(self) -> None:
        """Tell the beat how many rows have passed."""
        if self.task.sink == "publish":
            found = self.unit.computes and self.unit.computed == self._computed
            beat.current().passed(self.name, self.cursor - self._open(), found)
            self._computed = self.unit.computed

    def _open(self) -> int:
        """Rows before `cursor` without a result."""
        return 0

    def result(self, index: int, start: int, stop: int) -> StageResult:
        raise NotImplementedError

    def _limit(self, stop: int) -> int:
        return min([stop, *(member.resolved for member in self.near)])

    def _arrive(self, start: int, stop: int) -> Fate:
        """Fate of a range of rows before this member; recorded in `before`."""
        fates = [member.after.slice(start, stop) for member in self.inputs]
        if self.spec.base is not None:
            fates.append(self.outside().slice(start, stop))
        found = fates[0]
        for fate in fates[1:]:
            found = found.intersect(fate)
        self.before.put(start, found)
        return found

    def outside(self) -> Fate:
        """Fate of all rows on the paths from outside of the pass."""
        assert self.spec.base is not None
        try:
            return self.unit.fate(self.spec.base)
        except (OSError, pa.ArrowInvalid):
            if not self.task.aside:
                raise
            return Fate.all_alive(self.unit.rows)  # the shard may be set aside because its own table is corrupt

    def values(self, rows: NDArray[np.int64]) -> pa.Table:
        """`key` and the columns that the stage reads, at some rows (ascending)."""
        names = list(dict.fromkeys(("key", *self.stage.reads())))
        outside = [name for name in names if name not in self.makers]
        table = self.unit.columns(self.spec.columns, outside).take(pa.array(rows))
        for name in names:
            if name in self.makers:
                column, field = self.makers[name].column(name, rows)
                table = table.append_column(field, column)
        return table.select(names)

    def value(self, name: str, rows: NDArray[np.int64]) -> pa.ChunkedArray:
        """A column of the pool or of a stage upstream, at some rows (ascending)."""
        if name in self.makers:
            return self.makers[name].column(name, rows)[0]
        return self.unit.columns(self.spec.columns, [name]).take(pa.array(rows)).column(0)

    def entry(self, start: int, stop: int) -> Entry:
        """Ledger entry of a range of rows."""
        before, after = self.before.alive[start:stop], self.after.alive[start:stop]
        entry = Entry(int(before.sum()), after=int(after.sum()))
        entry.of_items = {family: self._items(family, start, stop) for family in sorted(self.after.items)}
        return entry

    def _items(self, family: str, start: int, stop: int) -> ItemEntry:
        """Items of a family: alive in arriving rows, rejected individually here, lost with their row, and alive in
        passing rows."""
        earlier, later = (fate.items.get(family) for fate in (self.before, self.after))
        arrived, left = self.before.alive[start:stop], ~self.after.alive[start:stop]
        now = None if later is None else later[start:stop]
        alive, rejected = item_counts(now, arrived)
        gone = item_counts(None if earlier is None else earlier[start:stop], arrived)[1]
        lost = item_counts(now, arrived & left)[0]
        fresh = rejected - gone
        return ItemEntry(alive + fresh.total(), fresh, lost, alive - lost)


class FilterMember(PassMember):
    stage: Filter

    def advance(self, stop: int) -> Iterable[None]:
        start, stop = self.cursor, self._limit(stop)
        if start >= stop:
            return ()
        began = time.perf_counter()
        fate = self._arrive(start, stop)
        rows = np.flatnonzero(self.judged(start, stop, fate))
        if len(rows):
            table = self._table(start, rows, fate)
            reasons = self._row_reasons(start, rows, fate, self._keep(table))
            self.note(rows + start, table, reasons)
            left = np.array([reason is not None for reason in reasons], dtype=bool)
            fate.leave(rows[left], self.spec.place, [reason for reason in reasons if reason is not None])
        self.after.put(start, fate)
        self.cursor = self.resolved = stop
        self.seconds += time.perf_counter() - began
        self.report()
        return ()

    def judged(self, start: int, stop: int, fate: Fate) -> NDArray[np.bool_]:
        """Rows of a range to judge."""
        return fate.alive

    def note(self, rows: NDArray[np.int64], table: pa.Table, reasons: list[str | None]) -> None:
        """Take note of what is decided about some rows."""
        return

    def _table(self, start: int, rows: NDArray[np.int64], fate: Fate) -> pa.Table:
        """Input of the filter for rows (indices in the range); items rejected upstream are null."""
        table = self.values(rows + start)
        mine = Fate(fate.stage[rows], fate.reason[rows], fate.marked[rows], {f: v[rows] for f, v in fate.items.items()})
        return Rows(self.unit.storage, families=tuple(self.spec.families.items())).without_items(table, mine)

    def _keep(self, table: pa.Table) -> Any:
        """The filter's result. Any exception ends the run: it is a bug of the filter, or rows that it cannot judge."""
        pulse, began = beat.current(), time.monotonic()
        pulse.doing(self.name)
        try:
            found = self.stage.keep(table)
            pulse.done(self.name, 0, time.monotonic() - began)
            return found
        except CurateError:
            raise
        except Exception as error:  # a filter may raise anything; the message names its op
            text = redact(f"{type(error).__name__}: {error}")
            raise CurateError(
                f"{self.stage.op} failed on these rows ({text}); reject them upstream, or fix the filter"
            ) from error

    def _row_reasons(self, start: int, rows: NDArray[np.int64], fate: Fate, found: Any) -> list[str | None]:
        """The reason to reject each row, or None; rejected items are recorded in `fate`."""
        reasons = found.to_pylist() if isinstance(found, (pa.Array, pa.ChunkedArray)) else list(found or ())
        if len(reasons) != len(rows):
            raise CurateError(
                f"{self.stage.op}: keep returned {len(reasons)} reasons for {len(rows)} rows; return one for each"
            )
        if not self.spec.family:
            wrong = next((reason for reason in reasons if not (reason is None or isinstance(reason, str))), None)
            if wrong is not None:
                raise CurateError(f"{self.stage.op}: keep returned {wrong!r} as a reason; return a word, or null")
            return reasons
        reasons = self._item_reasons(start, rows, reasons)
        fate.reject_items(self.spec.family, rows, reasons)
        rejected = fate.items[self.spec.family]
        return [_row_reason(items, rejected[row]) for row, items in zip(rows, reasons, strict=True)]

    def _item_reasons(self, start: int, rows: NDArray[np.int64], reasons: list[Any]) -> list[Any]:
        """Reasons by item, with NO_ITEM for items that are null in the family's own column."""
        root = self.value(self.spec.family, rows + start)
        if not pa.types.is_list(root.type) or not pc.list_flatten(root).null_count:
            return reasons
        found: list[Any] = []
        for items, given in zip(root.to_pylist(), reasons, strict=True):
            if given is not None and len(given) != len(items or ()):
                text = f"{len(given)} reasons for {len(items or ())} items of {self.spec.family}"
                raise CurateError(f"{self.stage.op}: keep returned {text}; return one for each")
            pairs = zip(items or (), given or (), strict=True)
            found.append(None if given is None else [NO_ITEM if item is None else reason for item, reason in pairs])
        return found

    def result(self, index: int, start: int, stop: int) -> StageResult:
        entry = self.entry(start, stop)
        left = self.before.alive[start:stop] & ~self.after.alive[start:stop]
        entry.rejected = Counter(self.after.reason[start:stop][left].tolist())
        return {"entry": entry.check(self.name).to_json(), "seconds": round(self.seconds, 4)}


def _row_reason(reasons: list[str | None] | None, rejected: list[str | None] | None) -> str | None:
    """Reason to reject a row at an item filter; None while an item is left."""
    if not reasons:
        return NO_ITEMS
    if rejected is None or not all(rejected):
        return None
    return next((reason for reason in reasons if reason and reason != NO_ITEM), NO_ITEMS)
