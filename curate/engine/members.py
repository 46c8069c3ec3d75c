"""What a Map or a Filter does in a pass: how far it has got over a unit's rows, and what became of each row there."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core import facts
from curate.core.contracts import Filter, Map
from curate.core.errors import CurateError, InputError, Reject
from curate.core.facts import DONE, ERROR, MISSING, UNUSABLE, Notes
from curate.core.ledger import SET_ASIDE, Entry, ItemEntry
from curate.core.masks import NO_ITEMS, Fate, concatenated, item_counts
from curate.core.nouns import Shard
from curate.core.rows import POOL_COLUMNS, Rows
from curate.core.secrets import redact
from curate.core.storage import Storage
from curate.engine import answers
from curate.engine.backend import set_up
from curate.engine.batches import KILLED, Produced, run_batch

if TYPE_CHECKING:
    from curate.engine.passes import PassTask, Step


class Adopted(Exception):
    """Another run published other values first: what was computed from ours has to be computed again."""


class Failed(Exception):
    """An exception of `prepare`: the name of its class, and what it said without the stage's secrets."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Unit:
    """A few shards as one stretch of rows; tables of the pool and of stages outside of the pass, each read once."""

    def __init__(self, storage: Storage, shards: Sequence[Shard]) -> None:
        self.storage, self.shards = storage, shards
        self.edges = np.concatenate([[0], np.cumsum([shard.rows for shard in shards])]).astype(np.int64)
        self.rows = int(self.edges[-1])
        self._fates: dict[Any, Fate] = {}
        self._columns: dict[tuple[str, str], pa.Table] = {}

    def pool(self, names: Sequence[str]) -> pa.Table:
        return self.columns(Rows(self.storage), names)

    def columns(self, rows: Rows, names: Sequence[str]) -> pa.Table:
        """Named columns of all rows."""
        makers = {name: next((ref.base for ref in rows.columns if name in ref.names), "") for name in names}
        lacking = [name for name, base in makers.items() if (name, base) not in self._columns]
        if lacking:
            tables = [rows.table(shard, tuple(lacking)) for shard in self.shards]
            whole = pa.concat_tables(tables).combine_chunks()
            self._columns |= {(name, makers[name]): whole.select([name]) for name in lacking}
        found = [self._columns[place] for place in makers.items()]
        fields = [table.schema.field(0) for table in found]
        return pa.table([table.column(0) for table in found], schema=pa.schema(fields))

    def fate(self, rows: Rows) -> Fate:
        """What became of all rows on the ways from outside."""
        ways = (rows.masks, rows.selection, rows.parents is None)
        if ways not in self._fates:
            self._fates[ways] = concatenated([rows.fate(shard) for shard in self.shards])
        return self._fates[ways]

    def marks(self, rows: Rows, name: str) -> NDArray[np.bool_]:
        ref = next((ref for ref in rows.columns if name in ref.names), None)
        if ref is None:
            return np.zeros(self.rows, dtype=bool)
        return np.concatenate([rows.marks(ref, shard) for shard in self.shards])

    def shard_of(self, row: int) -> int:
        return int(np.searchsorted(self.edges, row, side="right")) - 1


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
        self.cursor = self.resolved = 0
        self.seconds = 0.0

    def start(self, first: int, last: int) -> None:
        self.cursor = self.resolved = first

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
            fates.append(self._outside().slice(start, stop))
        found = fates[0]
        for fate in fates[1:]:
            found = found.also(fate)
        self.before.put(start, found)
        if self.task.dry:
            for member in self.near:
                self.unsure[start:stop] |= member.unsure[start:stop]
        return found

    def _outside(self) -> Fate:
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

    def entry(self, start: int, stop: int) -> Entry:
        before, after = self.before.slice(start, stop).alive, self.after.slice(start, stop).alive
        return Entry(int(before.sum()), after=int(after.sum()))

    def lost(self, start: int, stop: int) -> Counter[str]:
        """Rows that left here, by reason."""
        left = self.before.alive[start:stop] & ~self.after.alive[start:stop]
        return Counter(self.after.reason[start:stop][left].tolist())


class FilterMember(Member):
    stage: Filter

    def __init__(self, task: PassTask, step: Step, unit: Unit, made: Mapping[str, Member]) -> None:
        super().__init__(task, step, unit, made)
        self._lengths = np.zeros(unit.rows, dtype=np.int64)
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
                self.unsure[start:stop] |= member.status[start:stop] == MISSING
        rows = np.flatnonzero(fate.alive & ~self.unsure[start:stop])
        if len(rows):
            table = self._seen(start, rows, fate)
            whys = self._whys(start, rows, fate, self.stage.keep(table))
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

    def _whys(self, start: int, rows: NDArray[np.int64], fate: Fate, found: Any) -> list[str | None]:
        """Why each row leaves, or None."""
        reasons = found.to_pylist() if isinstance(found, (pa.Array, pa.ChunkedArray)) else list(found)
        if len(reasons) != len(rows):
            raise AssertionError(f"{self.stage.op}: keep returned {len(reasons)} reasons for {len(rows)} rows")
        if not self.step.family:
            return reasons
        self._lengths[rows + start] = [len(items or ()) for items in reasons]
        fate.reject_items(self.step.family, rows, reasons)
        held = fate.items[self.step.family]
        return [_why(items, held[row]) for row, items in zip(rows, reasons, strict=True)]

    def result(self, index: int, start: int, stop: int) -> dict[str, Any]:
        entry = self.entry(start, stop)
        entry.rejected = self.lost(start, stop)
        if self.step.family and not self.task.dry:
            entry.of_items = {self.step.family: self._items(start, stop)}
        unsure = int((self.unsure & self.before.alive)[start:stop].sum())
        said = {"entry": entry.check(self.name).to_json(), "unsure": unsure, "seconds": round(self.seconds, 4)}
        if self.step.earlier is not None:
            gains = self._gains[start:stop]
            said |= {"gains": int((gains > 0).sum()), "losses": int((gains < 0).sum())}
        return said

    def _items(self, start: int, stop: int) -> ItemEntry:
        """The items of alive rows: what earlier filters had left of them, and what this one did."""
        alive, lengths = self.before.alive[start:stop], self._lengths[start:stop]
        earlier, later = (fate.items.get(self.step.family) for fate in (self.before, self.after))
        before, gone = item_counts(lengths, None if earlier is None else earlier[start:stop], alive)
        after, rejected = item_counts(lengths, None if later is None else later[start:stop], alive)
        return ItemEntry(before, rejected - gone, 0, after)


def _why(found: list[str | None] | None, held: list[str | None] | None) -> str | None:
    """Why a row leaves at an item filter: None while an item is left."""
    if not found:
        return NO_ITEMS
    if held is None or not all(held):
        return None
    return next((reason for reason in found if reason), NO_ITEMS)


class MapMember(Member):
    stage: Map

    def __init__(
        self,
        task: PassTask,
        step: Step,
        unit: Unit,
        made: Mapping[str, Member],
        keep: frozenset[str],
        numbers: dict[str, int],
    ) -> None:
        super().__init__(task, step, unit, made)
        self._keep, self._ready = keep, False
        self.numbers = numbers
        """Shard -> number of its highest table; as tables are published, of ours."""
        self.after_batch: Callable[[], None] = lambda: None
        self.counts: dict[str, int] = {}
        """How many rows of a shard were `computed`, `copied`, `requests`, `repeated`: `<shard>/<what>`."""
        self.status = np.full(unit.rows, MISSING, np.int8)
        self.reason = np.full(unit.rows, None, object)
        self.marked = np.zeros(unit.rows, dtype=bool)
        self.input: NDArray[Any] | None = np.full(unit.rows, None, object) if step.stage.costly else None
        self.prepared: dict[int, Any] = {}
        self.wanted = np.zeros(unit.rows, dtype=bool)
        self.poison = self._poisoned()
        self._tables: dict[str, pa.Table] = {}
        self._notes: dict[str, Notes] = {}
        self._bytes: dict[str, int] = {}
        self._parts: list[pa.Table] = []
        self._part = np.full(unit.rows, -1, np.int32)
        self._place = np.full(unit.rows, -1, np.int64)
        self._fresh: list[int] = []
        self._buffer: deque[int] = deque()
        self._twins: dict[bytes, list[int]] = {}
        self._first: dict[bytes, int] = {}
        self._found: dict[bytes, answers.Answer] = {}
        self._answers = answers.Answers(task.storage, step.path.rpartition("/")[0], task.others.get(step.name, {}))
        self._said: Counter[str] = Counter()
        self._messages: dict[str, str] = {}
        self._load()

    def ready(self) -> Map:
        """The stage after its `setup`, which is run when the first row is lacking: a pass that only folds loads no
        model."""
        if not self._ready:
            step = self.step
            self.stage = set_up(step.path, step.stage, step.ports, self.unit.storage, self._keep)  # type: ignore[assignment]
            self._ready = True
        return self.stage

    # --- what is there ---

    def _load(self) -> None:
        for index, shard in enumerate(self.unit.shards):
            number = self.numbers.get(shard.id, 0)
            if not number:
                continue
            names = [item.name for item in facts.FIXED] + ([facts.INPUT] if self.input is not None else [])
            table = facts.read(self.unit.storage, self.step.path, shard.id, number, names)
            rows = table.column(facts.ROW).to_numpy() + self.unit.edges[index]
            self.status[rows] = table.column(facts.STATUS_COLUMN).to_numpy()
            self.reason[rows] = table.column(facts.REASON).to_pylist()
            self.marked[rows] = table.column(facts.MARKED).to_numpy(zero_copy_only=False)
            if self.input is not None:
                self.input[rows] = table.column(facts.INPUT).to_pylist()
            self._part[rows], self._place[rows] = -2 - index, np.arange(len(rows))
            self._notes[shard.id] = Notes.of(table.schema)

    def _poisoned(self) -> set[int]:
        found = set()
        for index, shard in enumerate(self.unit.shards):
            rows = self.task.poison.get(shard.id, {}).get(self.name, ())
            found |= {int(self.unit.edges[index]) + row for row in rows}
        return found

    def _table(self, index: int) -> pa.Table:
        """The whole of a shard's highest table."""
        shard = self.unit.shards[index]
        if shard.id not in self._tables:
            number = self.numbers[shard.id]
            self._tables[shard.id] = facts.read(self.unit.storage, self.step.path, shard.id, number)
        return self._tables[shard.id]

    def values_of(self, name: str, rows: NDArray[np.int64]) -> tuple[pa.ChunkedArray, pa.Field]:
        """A column at some rows (ascending); null where there is no value."""
        field = self.stage.schema().field(name)
        parts, order = [], []
        for part in np.unique(self._part[rows]):
            mine = np.flatnonzero(self._part[rows] == part)
            order.append(mine)
            if part == -1:
                parts.append(pa.nulls(len(mine), field.type))
                continue
            table = self._parts[part] if part >= 0 else self._table(-2 - part)
            if not self._ready:
                field = table.schema.field(name)
            parts.append(table.column(name).take(pa.array(self._place[rows[mine]])).combine_chunks())
        if not parts:
            return pa.chunked_array([pa.nulls(0, field.type)]), field
        if len(parts) == 1:
            return pa.chunked_array([_flat(parts[0])]), field
        whole = pa.concat_arrays([_flat(part).cast(field.type) for part in parts])
        return pa.chunked_array([whole.take(pa.array(np.argsort(np.concatenate(order))))]), field

    # --- what is lacking ---

    def lacking(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Rows of a stretch that would be computed if they were alive."""
        status, marked = self.status[start:stop], self.marked[start:stop]
        lacking = status == MISSING
        if self.name in self.task.retry:
            reasons = self.task.retry[self.name]
            again = status == ERROR
            if reasons:
                again &= np.isin(self.reason[start:stop].astype(str), reasons)
            lacking |= again & (self._part[start:stop] < -1)
        if marked.any():
            lacking |= marked & ~self._marks(start, stop) & (self._part[start:stop] < -1)
        return lacking

    def _marks(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Rows of a stretch for which something that the stage reads is an error's null, or computed from one."""
        marks = np.zeros(stop - start, dtype=bool)
        if not self.step.may_mark:
            return marks
        for name in self.stage.reads():
            maker = self.makers.get(name)
            if maker is not None:
                marks |= maker.marked[start:stop] | (maker.status[start:stop] == ERROR)
            elif name not in POOL_COLUMNS or any(name in ref.names for ref in self.step.columns.columns):
                marks |= self.unit.marks(self.step.columns, name)[start:stop]
        return marks

    def may_need(self) -> NDArray[np.bool_]:
        """Rows (n,) whose images have to be prepared, as far as can be told before the pass."""
        alive = np.ones(self.unit.rows, dtype=bool)
        for member in [self, *self.near]:
            if member.step.base is not None:
                alive &= member._outside().alive
        for member in self.near:
            if isinstance(member, MapMember) and not member.step.keep_null and not self.task.retry:
                final = (member.status == UNUSABLE) | ((member.status == ERROR) & ~member.marked)
                alive &= ~final
        held = self.unit.pool(("offset",)).column(0).is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(alive & (self.lacking(0, self.unit.rows) | self.marked) & held)
        if self.input is not None and not self.makers and len(rows):
            self._look_up(rows)
            rows = rows[[self.input[row] not in self._found for row in rows]]
        self.wanted[rows] = True
        if len(rows):
            self.ready()
        return self.wanted

    def _look_up(self, rows: NDArray[np.int64]) -> None:
        """Input digests of rows, and what was computed from these before."""
        assert self.input is not None
        content = None
        if self.stage.pixels:
            content = self.unit.pool(("sha256",)).column(0).take(pa.array(rows)).to_pylist()
        found = answers.inputs_of(self.values(rows), self.stage.reads(), content)
        self.input[rows] = np.array([*found, None], object)[:-1]
        wanted = {given: self.unit.shards[self.unit.shard_of(row)].id for given, row in zip(found, rows, strict=True)}
        fresh = {given: shard for given, shard in wanted.items() if given not in self._found}
        if fresh and not self.task.dry:
            self._found.update(self._answers.find(fresh))

    # --- going over the rows ---

    def advance(self, stop: int) -> None:
        start, stop = self.cursor, self._limit(stop)
        began = time.perf_counter()
        if start < stop:
            fate = self._arrive(start, stop)
            rows = start + np.flatnonzero(fate.alive & self.lacking(start, stop) & ~self.unsure[start:stop])
            self.cursor = stop
            self._take(rows)
            while len(self._buffer) >= self.stage.batch_rows:
                self._run([self._buffer.popleft() for _ in range(self.stage.batch_rows)])
                self.after_batch()
            self._settle()
        self.seconds += time.perf_counter() - began

    def flush(self) -> None:
        began = time.perf_counter()
        if self._buffer:
            rows = list(self._buffer)
            self._buffer.clear()
            self._run(rows)
        self._settle()
        self.seconds += time.perf_counter() - began

    def _take(self, rows: NDArray[np.int64]) -> None:
        """Rows that are needed: found elsewhere, known to fail, or on their way into a batch."""
        if self.task.dry or not len(rows):
            return
        if self.task.aside:
            self._messages[SET_ASIDE] = self.task.aside
            self._fail(rows.tolist(), ERROR, SET_ASIDE)
            return
        if self.input is not None:
            rows = self._reuse(rows)
        lost: dict[int, Exception | None] = {}
        for row in rows.tolist():
            if row in self.poison:
                self._fail([row], ERROR, KILLED)
            elif self.stage.pixels and row not in self.prepared:
                lost[row] = None
            elif self.stage.pixels and isinstance(self.prepared[row], Exception):
                lost[row] = self.prepared.pop(row)
            else:
                self._buffer.append(row)
        for row, error in lost.items():
            if isinstance(error, Failed):
                self._messages[error.kind] = str(error)
                self._fail([row], ERROR, error.kind)
            else:
                self._fail([row], UNUSABLE, redact(error.reason) if isinstance(error, Reject) else "no_data")

    def _reuse(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Copy what is known by its input; of rows with one input, the first is computed and the others follow."""
        assert self.input is not None
        unknown = np.array([self.input[row] is None for row in rows], dtype=bool)
        if unknown.any() or self.makers:
            self._look_up(rows)
        left = []
        for row in rows.tolist():
            given = self.input[row]
            if given in self._found:
                self._copy(row, *self._found[given])
            elif given in self._first:
                first = self._first[given]
                if self._part[first] >= 0:
                    self._follow(row, first)
                else:
                    self._twins.setdefault(given, []).append(row)
            else:
                self._first[given] = row
                left.append(row)
        return np.array(left, dtype=np.int64)

    def _copy(self, row: int, table: pa.Table, place: int) -> None:
        names = self.stage.schema().names
        self._parts.append(table.slice(place, 1).select(names))
        status = int(table.column(facts.STATUS_COLUMN)[place].as_py())
        self._set([row], len(self._parts) - 1, [0], [status], [table.column(facts.REASON)[place].as_py()])
        self._count(row, "copied")
        self.prepared.pop(row, None)

    def _follow(self, row: int, first: int) -> None:
        self._set([row], self._part[first], [self._place[first]], [self.status[first]], [self.reason[first]])
        self._count(row, "copied")
        self.prepared.pop(row, None)

    def _fail(self, rows: list[int], status: int, reason: str) -> None:
        made = Produced.without(self.ready().schema(), [status] * len(rows), [reason] * len(rows))
        self._accept(rows, made)

    def _run(self, rows: list[int]) -> None:
        table = self.values(np.array(rows, dtype=np.int64))
        prepared = [self.prepared.pop(row) for row in rows] if self.stage.pixels else []
        stage = self.ready()
        pad = stage.batch_rows if stage.padded() else 0
        self._accept(rows, run_batch(stage, table, prepared, pad))

    def _accept(self, rows: list[int], made: Produced) -> None:
        self._parts.append(made.table)
        self._set(rows, len(self._parts) - 1, range(len(rows)), made.status, made.reason)
        self._said += made.counters
        self._messages |= made.messages
        for row in rows:
            self._count(row, "computed")
        self._count(rows[0], "requests", made.computed)
        for row in rows:
            given = self.input[row] if self.input is not None else None
            for twin in self._twins.pop(given, ()) if given is not None else ():
                self._follow(twin, row)

    def _set(self, rows: Sequence[int], part: int, places: Any, status: Any, reason: Any) -> None:
        at = np.array(rows, dtype=np.int64)
        self._part[at], self._place[at] = part, np.array(list(places), dtype=np.int64)
        self.status[at] = np.array(list(status), np.int8)
        self.reason[at] = np.array([*reason, None], object)[:-1]
        if self.step.may_mark:
            for row in rows:
                self.marked[row] = self._marks(row, row + 1)[0]
        self._fresh += rows

    def _count(self, row: int, what: str, number: int = 1) -> None:
        key = f"{self.unit.shards[self.unit.shard_of(row)].id}/{what}"
        self.counts[key] = self.counts.get(key, 0) + number

    def _settle(self) -> None:
        """What became of the rows that are through."""
        start, stop = self.resolved, self._buffer[0] if self._buffer else self.cursor
        if start >= stop:
            return
        fate = self.before.slice(start, stop)
        status = self.status[start:stop]
        if not self.step.keep_null:
            left = np.flatnonzero(fate.alive & ((status == UNUSABLE) | (status == ERROR)))
            fate.leave(left, self.step.place, self.reason[start:stop][left])
        if self.step.may_mark or self.step.keep_null:
            fate.marked |= self.marked[start:stop] | (status == ERROR)
        if self.task.dry:
            self.unsure[start:stop] |= fate.alive & (status == MISSING)
        self.after.put(start, fate)
        self.resolved = stop

    # --- publishing ---

    def publish(self, whole: bool = True) -> bool:
        """Put what is new into the next table of each shard, of a `whole` unit also of those that have none; whether
        values changed because another run was first."""
        changed = False
        fresh = np.unique(np.array(self._fresh, dtype=np.int64))
        self._fresh = []
        notes = Notes(self._said, {}, self._messages)
        self._said = Counter()
        for index, shard in enumerate(self.unit.shards):
            low, high = self.unit.edges[index], self.unit.edges[index + 1]
            rows = fresh[(fresh >= low) & (fresh < high)]
            if len(rows) or (whole and not self.numbers.get(shard.id, 0)):
                changed |= self._publish(index, shard, rows, notes)
                notes = Notes(messages=self._messages)  # counters once
        return changed

    def _publish(self, index: int, shard: Shard, rows: NDArray[np.int64], notes: Notes) -> bool:
        number = self.numbers.get(shard.id, 0)
        base = self._table(index) if number else None
        mine = self._facts(index, rows)
        tried = {int(row - self.unit.edges[index]): 1 for row in rows[self.status[rows] == ERROR]}
        notes = Notes(notes.counters, tried, notes.messages, self.stage.hardware() if self._ready else "")
        self._remember(shard, rows, number + 1)
        made = facts.publish(self.unit.storage, self.step.path, shard.id, number, base, mine, notes)
        self.numbers[shard.id], self._tables[shard.id] = made.number, made.table
        self._bytes[shard.id] = made.bytes
        self._notes[shard.id] = Notes.of(made.table.schema)
        self._part[rows] = -2 - index
        held = made.table.column(facts.ROW).to_numpy() + self.unit.edges[index]
        known = np.full(self.unit.rows, -1, np.int64)
        known[held] = np.arange(len(held))
        ours = (self._part == -2 - index) & (known >= 0)
        self._place[ours] = known[ours]
        if made.number != number + 1:
            self._remember(shard, rows, made.number)
        if not len(made.adopted):
            return False
        key = f"{shard.id}/repeated"
        self.counts[key] = self.counts.get(key, 0) + len(made.adopted)
        return _differ(mine, made.table, made.adopted)

    def _remember(self, shard: Shard, rows: NDArray[np.int64], number: int) -> None:
        """Where the answers to new inputs will lie. Said before the table is published: a kill in between leaves a line
        that leads nowhere, and no answer that nobody finds."""
        if self.input is not None and len(rows):
            final = rows[(self.status[rows] != ERROR) & ~self.marked[rows]]
            lines = [(self.input[row], self.step.path, shard.id, number) for row in final]
            answers.remember(self.unit.storage, self.step.path.rpartition("/")[0], lines)

    def _facts(self, index: int, rows: NDArray[np.int64]) -> pa.Table:
        """A table of facts of some rows of a shard."""
        names = (self.stage if len(rows) else self.ready()).schema().names
        found = [self.values_of(name, rows) for name in names]
        columns = pa.table([column for column, _ in found], schema=pa.schema([field for _, field in found]))
        inputs = None if self.input is None else self.input[rows]
        local = rows - self.unit.edges[index]
        return facts.build(local, self.status[rows], self.reason[rows], self.marked[rows], columns, inputs)

    def result(self, index: int, start: int, stop: int) -> dict[str, Any]:
        shard = self.unit.shards[index]
        entry = self.entry(start, stop)
        alive, status = self.before.alive[start:stop], self.status[start:stop]
        for code, counted in ((UNUSABLE, entry.unusable), (ERROR, entry.error)):
            counted.update(self.reason[start:stop][alive & (status == code)].tolist())
        entry.kept = entry.lost.total() if self.step.keep_null else 0
        if shard.id in self._notes:
            entry.counters = self._notes[shard.id].counters
        counts = {n: self.counts.get(f"{shard.id}/{n}", 0) for n in ("computed", "copied", "requests", "repeated")}
        lacking = int((alive & (status == MISSING)).sum())
        known = np.flatnonzero(status != MISSING)
        summary = {
            name: int((status == code).sum())
            for name, code in (("done", DONE), ("unusable", UNUSABLE), ("error", ERROR))
        }
        summary |= {"known": facts.bitmap(known, shard.rows).hex()}
        found = {"entry": entry.check(self.name).to_json(), "number": self.numbers.get(shard.id, 0), "summary": summary}
        unsure = int((self.unsure & self.before.alive)[start:stop].sum())
        found |= {
            "bytes": self._bytes.get(shard.id, 0),
            "lacking": lacking,
            "unsure": unsure,
            "messages": {**(self._notes[shard.id].messages if shard.id in self._notes else {}), **self._messages},
        }
        return found | counts | {"seconds": round(self.seconds / max(1, len(self.unit.shards)), 4)}


def _flat(array: Any) -> pa.Array:
    """One array, whatever `combine_chunks` has left."""
    if isinstance(array, pa.ChunkedArray):
        return (
            array.chunk(0)
            if array.num_chunks == 1
            else pa.concat_arrays(array.chunks)
            if array.num_chunks
            else pa.array([], array.type)
        )
    return array


def _differ(mine: pa.Table, theirs: pa.Table, rows: NDArray[np.int64]) -> bool:
    """Whether two tables of facts say different things of some rows."""
    found = []
    for table in (mine, theirs):
        at = {row: place for place, row in enumerate(table.column(facts.ROW).to_pylist())}
        part = table.take(pa.array([at[row] for row in rows.tolist()])).replace_schema_metadata(None)
        found.append(part.select(mine.column_names).to_pylist())
    return repr(found[0]) != repr(found[1])
