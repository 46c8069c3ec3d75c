"""A Map in a pass: which rows it needs, what of these is known, and batches of the rest."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.contracts import Map
from curate.core.errors import CurateError, Reject
from curate.core.facts import ERROR, MISSING, UNUSABLE
from curate.core.ledger import SET_ASIDE
from curate.core.masks import Fate
from curate.core.recipe.secrets import redact
from curate.core.rows import POOL_COLUMNS
from curate.core.stretches import SHARD
from curate.engine.backends import set_up
from curate.engine.passes import answers
from curate.engine.passes.batches import Produced, run_batch
from curate.engine.passes.held import Held
from curate.engine.passes.member import Member
from curate.engine.passes.unit import Unit
from curate.engine.workers import beat

if TYPE_CHECKING:
    from curate.engine.passes.task import PassTask, Step


class Failed(Exception):
    """An exception of `prepare`: the name of its class, and what it said without the stage's secrets."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


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
        counts: dict[str, Any],
    ) -> None:
        super().__init__(task, step, unit, made)
        self._keep, self._ready = keep, False
        read = any(step.name in other.makers.values() for other in task.steps)
        self.held = Held(unit, step.path, step.stage.costly, numbers, counts, read)  # type: ignore[union-attr]
        self.after_batch: Callable[[], None] = lambda: None
        self.prepared: dict[int, Any] = {}
        self.wanted = np.zeros(unit.rows, dtype=bool)
        self.careful: set[int] = set()
        """Rows that are computed one by one, because one of them has hung."""
        self.poison = self._poisoned()
        self.todo = np.zeros(unit.rows, dtype=bool)
        """In a dry pass: rows that would be computed."""
        self._vague = np.zeros(unit.rows, dtype=bool)
        """In a dry pass: rows of which nobody knows yet whether they get here."""
        self._buffer: deque[int] = deque()
        self._first: dict[bytes, int] = {}
        """Input -> the row that is computed for all rows with it."""
        self._twins: dict[bytes, list[int]] = {}
        """Input -> rows that wait for that one."""
        self._found: dict[bytes, answers.Answer] = {}
        self._done = np.zeros(unit.rows, dtype=bool)
        """Rows that were computed in this pass, whatever came out."""
        self._looked = np.zeros(unit.rows, dtype=bool)
        """Rows whose inputs are those of this pass."""
        others, index = task.others.get(step.name, {}), task.indexes.get(step.name, ())
        self._answers = answers.Answers(task.storage, step.path.rpartition("/")[0], others, index)

    def ready(self) -> Map:
        """The stage after its `setup`, which is run when the first row is lacking: a pass that only folds loads no
        model."""
        if not self._ready:
            step = self.step
            try:
                self.stage = set_up(step.path, step.stage, step.ports, self.unit.storage, self._keep)  # type: ignore
            except CurateError:
                raise
            except Exception as error:  # whatever a model or its libraries raise: without it no row can be computed
                text = redact(f"{type(error).__name__}: {error}", step.stage.secrets().values())
                raise CurateError(f"{step.stage.op} cannot be set up ({text})") from error
            self._ready = True
        return self.stage

    def _poisoned(self) -> dict[int, str]:
        """Row -> reason, of those that no process survives."""
        found: dict[int, str] = {}
        for index, shard in enumerate(self.unit.shards):
            rows = self.task.poison.get(shard.id, {}).get(self.name, {})
            found |= {int(self.unit.edges[index]) + row: reason for row, reason in rows.items()}
        return found

    def values_of(self, name: str, rows: NDArray[np.int64]) -> tuple[pa.ChunkedArray, pa.Field]:
        """A column at some rows (ascending); null where there is no value."""
        field = self.stage.schema().field(name)
        return self.held.values_of(name, field if self._ready else field.with_type(pa.null()), rows)

    # --- what is lacking ---

    def lacking(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Rows of a stretch that would be computed if they were alive."""
        status, marked = self.held.status[start:stop], self.held.marked[start:stop]
        lacking = status == MISSING
        if self.name in self.task.retry:
            reasons = self.task.retry[self.name]
            again = status == ERROR
            if reasons:
                again &= np.isin(self.held.reason[start:stop].astype(str), reasons)
            lacking |= again & self.held.stored(start, stop)
        if marked.any():
            lacking |= marked & ~self._marks(start, stop) & self.held.stored(start, stop)
        return lacking

    def _marks(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Rows of a stretch for which something that the stage reads is an error's null, or computed from one."""
        marks = np.zeros(stop - start, dtype=bool)
        if not self.step.may_mark:
            return marks
        for name in self.stage.reads():
            maker = self.makers.get(name)
            if maker is not None:
                marks |= maker.held.marked[start:stop] | (maker.held.status[start:stop] == ERROR)
            elif name not in POOL_COLUMNS or any(name in ref.names for ref in self.step.columns.columns):
                marks |= self.unit.marks(self.step.columns, name)[start:stop]
        return marks

    def may_need(self) -> NDArray[np.bool_]:
        """Rows (n,) whose images have to be prepared, as far as can be told before the pass."""
        alive = np.ones(self.unit.rows, dtype=bool)
        for member in [self, *self.near]:
            if member.step.base is not None:
                alive &= member.outside().alive
        for member in self.near:
            if isinstance(member, MapMember) and not member.step.keep_null and not self.task.retry:
                held = member.held
                alive &= ~((held.status == UNUSABLE) | ((held.status == ERROR) & ~held.marked))
        alive &= self.lacking(0, self.unit.rows) | self.held.marked
        if not alive.any():
            return self.wanted
        outside = {*self.makers, *(name for ref in self.step.columns.columns for name in ref.names)}
        names = [name for name in self.stage.reads() if name in POOL_COLUMNS and name not in outside]
        pool = self.unit.pool(("offset", "size", "sha256", *names))  # all that is needed, in one read
        rows = np.flatnonzero(alive & pool.column(0).is_valid().to_numpy(zero_copy_only=False))
        if self.held.input is not None and not self.makers and len(rows):
            self._look_up(rows)
            rows = rows[[self.held.input[row] not in self._found for row in rows]]
        self.wanted[rows] = True
        if len(rows):
            self.ready()
        return self.wanted

    def _look_up(self, rows: NDArray[np.int64]) -> None:
        """Input digests of rows, and what was computed from these before."""
        assert self.held.input is not None
        content = None
        if self.stage.pixels:
            content = self.unit.pool(("sha256",)).column(0).take(pa.array(rows)).to_pylist()
        found = answers.inputs_of(self.values(rows), self.stage.reads(), content)
        self.held.input[rows] = np.array([*found, None], object)[:-1]
        self._looked[rows] = True
        shards = np.searchsorted(self.unit.edges, rows, side="right") - 1
        wanted = {given: self.unit.shards[shard].id for given, shard in zip(found, shards, strict=True)}
        fresh = {given: shard for given, shard in wanted.items() if given not in self._found}
        if fresh:
            self._found.update(self._find(fresh))

    def _find(self, wanted: Mapping[bytes, str]) -> dict[bytes, answers.Answer]:
        """Stored answers to inputs (input -> its shard)."""
        return self._answers.find(wanted)

    # --- going over the rows ---

    def advance(self, stop: int) -> None:
        start, stop = self.cursor, self._limit(stop)
        gathers = self.stage.costly and not self.stage.pixels  # a look-up of many rows costs what one of a few does
        if start < stop and not (gathers and stop - start < min(self.stage.batch_rows, self.unit.rows)):
            self._go_over(start, stop)

    def _go_over(self, start: int, stop: int) -> None:
        began = time.perf_counter()
        if start < stop:
            fate = self._arrive(start, stop)
            rows = start + np.flatnonzero(self._needed(start, stop, fate))
            self.cursor = stop
            self._take(rows)
            self._work()
            self._settle()
        self.seconds += time.perf_counter() - began

    def _work(self) -> None:
        """Compute the rows that need not wait for others."""
        while len(self._buffer) >= (self.stage.batch_rows if self._fills() else 1):
            self._run(self._batch())

    def _finish(self) -> None:
        """Compute the rows that are left; no more come."""
        while self._buffer:
            self._run(self._batch())

    def _fills(self) -> bool:
        """Whether rows wait for a full batch: of cheap stages, others would wait with them for nothing."""
        return self.stage.costly or (self._ready and self.stage.padded() > 0)

    def _needed(self, start: int, stop: int, fate: Fate) -> NDArray[np.bool_]:
        """Rows of a stretch to get facts of. In a dry pass, those that may lack what is read are only counted."""
        lacking = fate.alive & self.lacking(start, stop)
        if self.task.dry:
            self._vague[start:stop] = self.unsure[start:stop]
            self.todo[start:stop] = lacking
            if self.makers:
                lacking &= ~self.unsure[start:stop]
        return lacking

    def _foresee(self, rows: NDArray[np.int64]) -> None:
        """In a dry pass: rows with an answer get it, as in a run, but nothing is published; of rows with one input, the
        first would be computed."""
        if self.held.input is not None:
            self.todo[rows] = False
            self.todo[self._reuse(rows)] = True

    def foreseen(self, index: int) -> pa.Table:
        """A shard's table as a run would publish it, where a dry pass has found answers."""
        start, stop = self.unit.edges[index : index + 2]
        rows = start + np.flatnonzero(self.held.status[start:stop] != MISSING)
        schema = self.stage.schema()
        if not self._ready:
            schema = pa.schema([field.with_type(pa.null()) for field in schema])
        return self.held.table_of(index, rows, schema)

    def flush(self) -> None:
        self._go_over(self.cursor, self._limit(self.last))
        began = time.perf_counter()
        self._finish()
        self._settle()
        self.seconds += time.perf_counter() - began

    def _take(self, rows: NDArray[np.int64]) -> None:
        """Rows that are needed: found elsewhere, known to fail, or on their way into a batch."""
        if not len(rows):
            return
        if self.task.dry:
            self._foresee(rows)
            return
        if self.task.aside:
            self.held.messages[SET_ASIDE] = self.task.aside
            self._fail(rows.tolist(), ERROR, SET_ASIDE)
            return
        if self.held.input is not None:
            rows = self._reuse(rows)
        if not self.stage.pixels and not self.poison:
            self._buffer.extend(rows.tolist())
            return
        for row in rows.tolist():
            if row in self.poison:
                self._fail([row], ERROR, self.poison[row])
            elif not self.stage.pixels or not isinstance(self.prepared.get(row, _NOTHING), Exception):
                self._buffer.append(row)
            else:
                self._lose(row, self.prepared.pop(row, _NOTHING))

    def _lose(self, row: int, error: Exception) -> None:
        """A row that `prepare` could not do anything with."""
        if isinstance(error, Failed):
            self.held.messages[error.kind] = str(error)
            self._fail([row], ERROR, error.kind)
        else:
            self._fail([row], UNUSABLE, redact(error.reason) if isinstance(error, Reject) else "no_data")

    def _reuse(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Copy what is known by its input; of rows with one input, the first is computed and the others follow. Returns
        the rows to compute."""
        inputs = self.held.input
        assert inputs is not None
        if not self._looked[rows].all():  # a table's input may be that of an error's null
            self._look_up(rows[~self._looked[rows]])
        names = list(self.stage.schema().names)
        left, hits = [], dict[int, tuple[pa.Table, list[int], list[int]]]()
        for row in rows.tolist():
            given = inputs[row]
            if given in self._found:
                table, place = self._found[given]
                _, mine, places = hits.setdefault(id(table), (table, [], []))
                mine.append(row)
                places.append(place)
            elif (first := self._first.get(given, -1)) >= 0 and not self._done[first]:
                self._twins.setdefault(given, []).append(row)
            elif first >= 0 and self.held.status[first] != ERROR:
                self.held.follow(row, first, names)
                self._mark([row])
                self.held.own[row] = self.held.marked[first] and not self.held.marked[row]
            else:
                self._first[given] = row
                left.append(row)
        for table, mine, places in hits.values():
            self.held.copy(mine, table, places, names)
            self._mark(mine)
        return np.array(left, dtype=np.int64)

    def _mark(self, rows: list[int]) -> None:
        """Note of rows that have just got their facts whether these come from an error's null."""
        for row in rows if self.prepared or self.step.may_mark else ():
            self.prepared.pop(row, None)
            if self.step.may_mark:
                self.held.marked[row] = self._marks(row, row + 1)[0]

    def _fail(self, rows: list[int], status: int, reason: str) -> None:
        made = Produced.without(self.ready().schema(), [status] * len(rows), [reason] * len(rows))
        self._accept(rows, made)

    def _batch(self) -> list[int]:
        """The rows of the next batch: full, or one that may hang."""
        rows = [self._buffer.popleft()]
        while self._buffer and len(rows) < self.stage.batch_rows and not self.careful.intersection(rows):
            if self._buffer[0] in self.careful:
                break
            rows.append(self._buffer.popleft())
        return rows

    def _run(self, rows: list[int]) -> None:
        stage, pulse = self.ready(), beat.current()
        table = self.values(np.array(rows, dtype=np.int64))
        if stage.by_shard:
            table = table.append_column(SHARD, self.unit.shards_of(rows))
        prepared = [self.prepared[row] for row in rows] if stage.pixels else []
        with pulse.turn:
            began = time.perf_counter()
            pulse.doing(self.name, rows)
            try:
                made = run_batch(stage, table, prepared, stage.padded())
            except AssertionError as error:  # the stage's columns are not those of its schema
                raise CurateError(f"{error}; fix the stage") from error
            pulse.done(self.name, len(rows), time.perf_counter() - began, self._bytes(rows, table))
        self._accept(rows, made)
        self.after_batch()

    def _bytes(self, rows: list[int], table: pa.Table) -> int:
        """Bytes that a batch was made from: those of its images, else those of its columns."""
        if not self.stage.pixels:
            return int(table.nbytes)
        return int(pc.sum(self.unit.pool(("size",)).column(0).take(pa.array(rows))).as_py() or 0)

    def _accept(self, rows: list[int], made: Produced) -> None:
        held = self.held
        held.add(rows, made.table, made.status, made.reason)
        self._done[rows] = True
        held.own[rows] = True
        held.counters += made.counters
        held.messages |= made.messages
        held.count(rows, "computed")
        held.count(rows, "requests", made.computed)
        self._mark(rows)
        if held.input is not None and self._twins:
            names = list(self.stage.schema().names)
            for row in rows:
                twins = self._twins.pop(held.input[row], [])
                if twins and held.status[row] == ERROR:  # an error is no answer: the next one tries for itself
                    self._first[held.input[row]] = twins[0]
                    self._twins[held.input[row]] = twins[1:]
                    self._buffer = deque(sorted([*self._buffer, twins[0]]))
                    continue
                for twin in twins:
                    held.follow(twin, row, names)
                    self._mark([twin])

    def _on_its_way(self) -> int:
        """The first row that is not through."""
        return self._buffer[0] if self._buffer else self.cursor

    def _settle(self) -> None:
        """What became of the rows that are through."""
        start, stop = self.resolved, self._on_its_way()
        if start >= stop:
            return
        fate = self.before.slice(start, stop)
        status = self.held.status[start:stop]
        if not self.step.keep_null:
            left = np.flatnonzero(fate.alive & ((status == UNUSABLE) | (status == ERROR)))
            fate.leave(left, self.step.place, self.held.reason[start:stop][left])
        if self.step.may_mark or self.step.keep_null:
            fate.marked |= self.held.marked[start:stop] | (status == ERROR)
        if self.task.dry:
            self.unsure[start:stop] |= fate.alive & ((status == MISSING) | self.todo[start:stop])
        self.after.put(start, fate)
        self.resolved = stop

    # --- what came out ---

    def last_answers(self, until: float) -> bool:
        """The run was told to stop: take in what is under way and comes before `until` (time.monotonic()). Returns
        whether anything came."""
        return False

    def close(self) -> None:
        """The unit has ended, well or not."""

    def publish(self, whole: bool = True) -> bool:
        """Put what is new into tables; whether values changed because another run was first."""
        lacks_one = whole and any(not self.held.numbers.get(shard.id, 0) for shard in self.unit.shards)
        schema = (self.ready() if lacks_one else self.stage).schema()
        if not self._ready:
            schema = pa.schema([field.with_type(pa.null()) for field in schema])
        return self.held.publish(schema, self.stage.hardware() if self._ready else "", whole)

    def result(self, index: int, start: int, stop: int) -> dict[str, Any]:
        entry = self.entry(start, stop)
        alive, status = self.before.alive[start:stop], self.held.status[start:stop]
        for code, counted in ((UNUSABLE, entry.unusable), (ERROR, entry.error)):
            counted.update(self.held.reason[start:stop][alive & (status == code)].tolist())
        entry.kept = entry.lost.total() if self.step.keep_null else 0
        notes = self.held.notes.get(self.unit.shards[index].id)
        if notes is not None:
            entry.counters = notes.counters
        found = {"entry": entry.check(self.name).to_json(), "lacking": int((alive & self.todo[start:stop]).sum())}
        found["unsure"] = int((alive & self._vague[start:stop]).sum())
        if self.task.dry:
            found["known"] = int((alive & self.held.stored(start, stop) & ~self.todo[start:stop]).sum())
        return found | self.held.said(index) | {"seconds": round(self.seconds / max(1, len(self.unit.shards)), 4)}


_NOTHING = LookupError("the row has no image")
