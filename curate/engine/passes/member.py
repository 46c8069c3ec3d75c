"""What a Map or a Filter does in a pass: how far it has got over a unit's rows, and what became of each row there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.contracts import Filter
from curate.core.errors import CurateError, InputError
from curate.core.facts import MISSING
from curate.core.ledger import Entry, ItemEntry
from curate.core.masks import NO_ITEM, NO_ITEMS, Fate, item_counts
from curate.core.recipe.secrets import redact
from curate.core.rows import Rows
from curate.engine.passes.unit import Unit
from curate.engine.workers import beat

if TYPE_CHECKING:
    from curate.engine.passes.map import MapMember
    from curate.engine.passes.task import PassTask, Step


class Member:
    """A Filter or a Map of a pass. Rows before `resolved` have their `after`."""

    def __init__(self, task: PassTask, step: Step, unit: Unit, made: Mapping[str, Member]) -> None:
        self.task, self.step, self.unit, self.name, self.stage = task, step, unit, step.name, step.stage
        self.inputs = [made[name] for name in step.inputs]
        self.makers: dict[str, MapMember] = {c: made[name] for c, name in step.makers.items()}  # type: ignore[misc]
        self.near = list(made.values())
        self.depends: set[str] = {name for member in self.near for name in (member.name, *member.depends)}
        self.before, self.after = Fate.all_alive(unit.rows), Fate.all_alive(unit.rows)
        self.after.at = step.place
        self.unsure = np.zeros(unit.rows, dtype=bool)
        """Rows that depend on facts which are not there (dry passes only)."""
        self.cursor = self.resolved = self.last = 0
        self.seconds = 0.0

    def start(self, first: int, last: int) -> None:
        self.cursor = self.resolved = first
        self.last = last

    @contextmanager
    def named(self) -> Iterator[None]:
        """What a stage says of its own parameters and inputs gets the stage's name and its place in the recipe."""
        try:
            yield
        except CurateError as error:
            if type(error) not in (CurateError, InputError):
                raise
            raise type(error)(f"{self.step.where or 'pipeline'}: {self.name}: {error}") from error

    def advance(self, stop: int) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """No more rows come."""

    def result(self, index: int, start: int, stop: int) -> dict[str, Any]:
        raise NotImplementedError

    def _limit(self, stop: int) -> int:
        return min([stop, *(member.resolved for member in self.near)])

    def _arrive(self, start: int, stop: int) -> Fate:
        """Who is alive before this member, of a stretch of rows; noted."""
        fates = [member.after.slice(start, stop) for member in self.inputs]
        if self.step.base is not None:
            fates.append(self.outside().slice(start, stop))
        found = fates[0]
        for fate in fates[1:]:
            found = found.also(fate)
        self.before.put(start, found)
        if self.task.dry:
            for member in self.near:
                self.unsure[start:stop] |= member.unsure[start:stop]
        return found

    def outside(self) -> Fate:
        assert self.step.base is not None
        try:
            return self.unit.fate(self.step.base)
        except (OSError, pa.ArrowInvalid):
            if not self.task.aside:
                raise
            return Fate.all_alive(self.unit.rows)  # the shard's own table may be what cannot be read

    def values(self, rows: NDArray[np.int64]) -> pa.Table:
        """`key` and what the stage reads, of some rows (ascending)."""
        names = list(dict.fromkeys(("key", *self.stage.reads())))
        outside = [name for name in names if name not in self.makers]
        table = self.unit.columns(self.step.columns, outside).take(pa.array(rows))
        for name in names:
            if name in self.makers:
                column, field = self.makers[name].values_of(name, rows)
                table = table.append_column(field, column)
        return table.select(names)

    def value(self, name: str, rows: NDArray[np.int64]) -> pa.ChunkedArray:
        """A column of the pool or of a stage upstream, at some rows (ascending)."""
        if name in self.makers:
            return self.makers[name].values_of(name, rows)[0]
        return self.unit.columns(self.step.columns, [name]).take(pa.array(rows)).column(0)

    def entry(self, start: int, stop: int) -> Entry:
        before, after = self.before.alive[start:stop], self.after.alive[start:stop]
        entry = Entry(int(before.sum()), after=int(after.sum()))
        entry.of_items = {family: self._items(family, start, stop) for family in sorted(self.after.items)}
        return entry

    def _items(self, family: str, start: int, stop: int) -> ItemEntry:
        """The items of a family: alive in the rows that arrive, rejected one by one here, lost with their row, alive in
        the rows that go on."""
        earlier, later = (fate.items.get(family) for fate in (self.before, self.after))
        arrived, left = self.before.alive[start:stop], ~self.after.alive[start:stop]
        now = None if later is None else later[start:stop]
        alive, rejected = item_counts(now, arrived)
        gone = item_counts(None if earlier is None else earlier[start:stop], arrived)[1]
        lost = item_counts(now, arrived & left)[0]
        fresh = rejected - gone
        return ItemEntry(alive + fresh.total(), fresh, lost, alive - lost)

    def lost(self, start: int, stop: int) -> Counter[str]:
        """Rows that left here, by reason."""
        left = self.before.alive[start:stop] & ~self.after.alive[start:stop]
        return Counter(self.after.reason[start:stop][left].tolist())


class FilterMember(Member):
    stage: Filter

    def __init__(self, task: PassTask, step: Step, unit: Unit, made: Mapping[str, Member]) -> None:
        super().__init__(task, step, unit, made)
        self._gains = np.zeros(unit.rows, dtype=np.int8)
        """1 where the filter lets a row in that the last run rejected, -1 where it is the other way round."""

    def advance(self, stop: int) -> None:
        start, stop = self.cursor, self._limit(stop)
        if start >= stop:
            return
        began = time.perf_counter()
        fate = self._arrive(start, stop)
        if self.task.dry:
            for member in set(self.makers.values()):
                self.unsure[start:stop] |= member.held.status[start:stop] == MISSING
        rows = np.flatnonzero(fate.alive & ~self.unsure[start:stop])
        if len(rows):
            table = self._seen(start, rows, fate)
            whys = self._whys(start, rows, fate, self._keep(table))
            if self.step.earlier is not None and not self.step.family:
                before = np.asarray(pa.array(self.step.earlier.keep(table), pa.string()).is_null())
                self._gains[rows + start] = np.array([why is None for why in whys]).astype(np.int8) - before
            left = np.array([why is not None for why in whys], dtype=bool)
            fate.leave(rows[left], self.step.place, [why for why in whys if why is not None])
        self.after.put(start, fate)
        self.cursor = self.resolved = stop
        self.seconds += time.perf_counter() - began

    def _seen(self, start: int, rows: NDArray[np.int64], fate: Fate) -> pa.Table:
        """What the filter sees of rows (indices in the stretch): items rejected before are null."""
        table = self.values(rows + start)
        mine = Fate(fate.stage[rows], fate.reason[rows], fate.marked[rows], {f: v[rows] for f, v in fate.items.items()})
        return Rows(self.unit.storage, families=tuple(self.step.families.items())).without_items(table, mine)

    def _of_items(self, start: int, rows: NDArray[np.int64], reasons: list[Any]) -> list[Any]:
        """Reasons by place, where the column that makes the items is null as well."""
        root = self.value(self.step.family, rows + start)
        if not pa.types.is_list(root.type) or not pc.list_flatten(root).null_count:
            return reasons
        found: list[Any] = []
        for there, said in zip(root.to_pylist(), reasons, strict=True):
            if said is not None and len(said) != len(there or ()):
                text = f"{len(said)} reasons for {len(there or ())} items of {self.step.family}"
                raise CurateError(f"{self.stage.op}: keep returned {text}; return one for each")
            places = zip(there or (), said or (), strict=True)
            found.append(None if said is None else [NO_ITEM if item is None else why for item, why in places])
        return found

    def _keep(self, table: pa.Table) -> Any:
        """What the filter says. An exception is a bug of the filter, or rows that it cannot judge: it ends the run."""
        pulse, began = beat.current(), time.monotonic()
        pulse.doing(self.name)
        try:
            found = self.stage.keep(table)
            pulse.done(self.name, table.num_rows, time.monotonic() - began)
            return found
        except CurateError:
            raise
        except Exception as error:  # whatever somebody's filter raises: its name and place have to be said
            text = redact(f"{type(error).__name__}: {error}")
            raise CurateError(
                f"{self.stage.op} cannot judge these rows ({text}); reject them before, or fix it"
            ) from error

    def _whys(self, start: int, rows: NDArray[np.int64], fate: Fate, found: Any) -> list[str | None]:
        """Why each row leaves, or None."""
        reasons = found.to_pylist() if isinstance(found, (pa.Array, pa.ChunkedArray)) else list(found or ())
        if len(reasons) != len(rows):
            raise CurateError(
                f"{self.stage.op}: keep returned {len(reasons)} reasons for {len(rows)} rows; return one for each"
            )
        if not self.step.family:
            wrong = next((reason for reason in reasons if not (reason is None or isinstance(reason, str))), None)
            if wrong is not None:
                raise CurateError(f"{self.stage.op}: keep returned {wrong!r} as a reason; return a word, or null")
            return reasons
        reasons = self._of_items(start, rows, reasons)
        fate.reject_items(self.step.family, rows, reasons)
        held = fate.items[self.step.family]
        return [_why(items, held[row]) for row, items in zip(rows, reasons, strict=True)]

    def result(self, index: int, start: int, stop: int) -> dict[str, Any]:
        entry = self.entry(start, stop)
        entry.rejected = self.lost(start, stop)
        unsure = int((self.unsure & self.before.alive)[start:stop].sum())
        said = {"entry": entry.check(self.name).to_json(), "unsure": unsure, "seconds": round(self.seconds, 4)}
        if self.step.earlier is not None:
            gains = self._gains[start:stop]
            said |= {"gains": int((gains > 0).sum()), "losses": int((gains < 0).sum())}
        return said


def _why(found: list[str | None] | None, held: list[str | None] | None) -> str | None:
    """Why a row leaves at an item filter: None while an item is left."""
    if not found:
        return NO_ITEMS
    if held is None or not all(held):
        return None
    return next((reason for reason in found if reason and reason != NO_ITEM), NO_ITEMS)
