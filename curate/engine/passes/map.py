"""A Map in a pass: the rows that need facts, the facts that are known, and batches of the rest."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.codec.members import member_columns
from curate.core.contracts import Map
from curate.core.errors import CurateError, Reject
from curate.core.ledger import SET_ASIDE
from curate.core.nouns.facts import ERROR, INPUT, MISSING, UNUSABLE
from curate.core.nouns.masks import Fate
from curate.core.row_lookup import SHARD
from curate.core.rows import POOL_COLUMNS
from curate.core.secrets import redact
from curate.engine.passes.answers import log as answer_log
from curate.engine.passes.answers.lookup import Answer, Answers, inputs_of
from curate.engine.passes.batches import BatchResult, PrepareError, run_batch
from curate.engine.passes.member import PassMember
from curate.engine.passes.task import PassStage, PassTask, StageResult
from curate.engine.passes.unit import Unit, UnitFacts
from curate.engine.tasks import beat
from curate.engine.tasks.stages import set_up


class MapMember(PassMember):
    stage: Map
    facts: UnitFacts

    def __init__(
        self,
        task: PassTask,
        spec: PassStage,
        unit: Unit,
        near: Mapping[str, PassMember],
        alone: set[int],
        numbers: dict[str, int],
        counts: dict[str, Any],
        found: dict[bytes, Answer],
    ) -> None:
        """`alone`: rows to compute in batches of one, because one of them hung. `numbers`: shard -> its highest table;
        `counts`: of facts by shard; `found`: input -> answer. They outlive the member if the unit starts over."""
        super().__init__(task, spec, unit, near)
        self.alone, self._ready = alone, False
        schema = pa.schema([field.with_type(pa.null()) for field in self.stage.schema()])
        read = any(spec.name in other.makers.values() for other in task.stages)
        self.facts = UnitFacts(unit, spec.path, schema, self.stage.costly, numbers, counts, read)
        self.prepared: dict[int, Any] = {}
        """Row -> what `prepare` returned or raised; `Decoder` fills it."""
        self.wanted = np.zeros(unit.rows, dtype=bool)
        """Rows whose images are prepared."""
        self.poison = {
            int(first) + row: reason
            for shard, first in zip(unit.shards, unit.edges, strict=False)
            for row, reason in task.poison.get(shard.id, {}).get(self.name, {}).items()
        }
        """Row that crashes or hangs the process -> the reason to record for it."""
        self._buffer: deque[int] = deque()
        self._first: dict[bytes, int] = {}
        """Input -> the row that is computed for all rows with this input."""
        self._twins: dict[bytes, list[int]] = {}
        """Input -> the other rows, which wait for it."""
        self._found = found
        self._own = frozenset(found)
        """Inputs whose answers the unit itself has computed: the index does not have them yet."""
        self._done = np.zeros(unit.rows, dtype=bool)
        """Rows computed in this pass, with any status."""
        self._looked_up = np.zeros(unit.rows, dtype=bool)
        """Rows whose inputs are those of this pass."""
        others, index = task.others.get(spec.name, {}), task.indexes.get(spec.name, {})
        self._answers = Answers(task.storage, spec.path.rpartition("/")[0], others, index)
        unit_name = answer_log.token(shard.id for shard in unit.shards)
        self._log = answer_log.Log(task.storage, spec.path, unit_name, self._log_rows, self.logs)
        self.logs = [self._log] if self.stage.costly else self.logs
        self._published = True
        """Whether tables have all results."""
        self.stale = False
        """Whether the results were computed from values that another run's have replaced."""

    def ready(self) -> Map:
        """The stage after its `setup`, which runs when the first row needs it: a pass with nothing to compute loads no
        model."""
        if not self._ready:
            spec, keep = self.spec, frozenset(other.path for other in self.task.stages if other.path)
            try:
                self.stage = set_up(spec.path, self.stage, spec.ports, self.unit.storage, keep)
            except CurateError:
                raise
            except Exception as error:  # a model or its libraries may raise anything; without it no row can be computed
                text = redact(f"{type(error).__name__}: {error}", self.stage.secrets().values())
                raise CurateError(f"{self.stage.op} cannot be set up ({text})") from error
            self._ready, self.facts.schema = True, self.stage.schema()
        return self.stage

    # --- missing facts ---

    def missing(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Rows of a range to compute, if they are alive."""
        status, marked = self.facts.status[start:stop], self.facts.marked[start:stop]
        missing = status == MISSING
        if self.name in self.task.retry:
            reasons = self.task.retry[self.name]
            retried = status == ERROR
            if reasons:
                retried &= np.isin(self.facts.reason[start:stop].astype(str), reasons)
            missing |= retried & self.facts.stored(start, stop)
        if marked.any():
            missing |= marked & ~self._marks(start, stop) & self.facts.stored(start, stop)
        return missing

    def _marks(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Rows of a range that read a null which stands for an error, or a value computed from such a null."""
        marks = np.zeros(stop - start, dtype=bool)
        if not self.spec.may_mark:
            return marks
        for name in self.stage.reads():
            if (maker := self.makers.get(name)) is not None:
                marks |= maker.marked[start:stop] | (maker.status[start:stop] == ERROR)
            elif name not in POOL_COLUMNS or any(name in ref.names for ref in self.spec.columns.columns):
                marks |= self.unit.marks(self.spec.columns, name)[start:stop]
        return marks

    def may_need(self) -> NDArray[np.bool_]:
        """Rows (n,) whose images this member may need, by what is known before the pass."""
        alive = np.ones(self.unit.rows, dtype=bool)
        for member in [self, *self.near]:
            if member.spec.base is not None:
                alive &= member.outside().alive
        for member in self.near:
            facts = member.facts
            if facts is not None and not member.spec.keep_null and not self.task.retry:
                alive &= ~((facts.status == UNUSABLE) | ((facts.status == ERROR) & ~facts.marked))
        alive &= self.missing(0, self.unit.rows) | self.facts.marked
        if not alive.any():
            return self.wanted
        outside = {*self.makers, *(name for ref in self.spec.columns.columns for name in ref.names)}
        names = [name for name in self.stage.reads() if name in POOL_COLUMNS and name not in outside]
        pool = self.unit.pool(tuple(dict.fromkeys((*member_columns(self.unit.shards), "sha256", *names))))
        rows = np.flatnonzero(alive & pool.column(0).is_valid().to_numpy(zero_copy_only=False))
        if self.facts.input is not None and not self.makers and len(rows):
            self._look_up(rows)
            rows = rows[[self.facts.input[row] not in self._found for row in rows]]
        self.wanted[rows] = True
        if len(rows):
            self.ready()
        return self.wanted

    def _look_up(self, rows: NDArray[np.int64]) -> None:
        """Compute the input digests of rows and find earlier answers to them."""
        assert self.facts.input is not None
        content = None
        if self.stage.pixels:
            content = self.unit.pool(("sha256",)).column(0).take(pa.array(rows)).to_pylist()
        inputs = inputs_of(self.values(rows), self.stage.reads(), content)
        self.facts.input[rows] = np.array([*inputs, None], object)[:-1]
        self._looked_up[rows] = True
        shards = self.unit.shard_indices(rows)
        wanted = {given: self.unit.shards[shard].id for given, shard in zip(inputs, shards, strict=True)}
        fresh = {given: shard for given, shard in wanted.items() if given not in self._found}
        if fresh:
            self._found.update(self._answers.find(fresh))

    # --- going over the rows ---

    def advance(self, stop: int) -> Iterable[None]:
        stop = self._limit(stop)
        gathers = self.stage.costly and not self.stage.pixels  # one look-up of many rows costs as much as one of a few
        if self.cursor < stop and not (gathers and stop - self.cursor < min(self.stage.batch_rows, self.unit.rows)):
            yield from self._go_over(stop)

    def flush(self) -> Iterable[None]:
        stop = self._limit(self.last)
        if self.cursor < stop:
            yield from self._go_over(stop)
        began = time.perf_counter()
        yield from self._finish()
        self._settle()
        self.seconds += time.perf_counter() - began
        self.report()

    def _go_over(self, stop: int) -> Iterator[None]:
        began, start = time.perf_counter(), self.cursor
        fate = self._arrive(start, stop)
        rows = start + np.flatnonzero(self._needed(start, stop, fate))
        self.cursor = stop
        self._take(rows)
        yield from self._work()
        self._settle()
        self.seconds += time.perf_counter() - began
        self.report()

    def _work(self) -> Iterable[None]:
        """Compute the rows that need not wait for a full batch; yields after each batch."""
        while len(self._buffer) >= (self.stage.batch_rows if self._fills() else 1):
            self._run(self._batch())
            yield

    def _finish(self) -> Iterable[None]:
        """Compute the remaining rows; yields after each batch."""
        while self._buffer:
            self._run(self._batch())
            yield

    def _fills(self) -> bool:
        """Whether to wait for full batches. Cheap stages do not: the members after them would wait too."""
        return self.stage.costly or (self._ready and self.stage.padded() > 0)

    def _needed(self, start: int, stop: int, fate: Fate) -> NDArray[np.bool_]:
        """Rows of a range that need facts."""
        return fate.alive & self.missing(start, stop)

    def _take(self, rows: NDArray[np.int64]) -> None:
        """Give rows their facts if these are known, or an error, or queue them for a batch."""
        if not len(rows):
            return
        if self.task.aside:
            self.facts.messages[SET_ASIDE] = self.task.aside
            self._fail(rows.tolist(), ERROR, SET_ASIDE)
            return
        if self.facts.input is not None:
            rows = self._reuse(rows)
        for row in rows.tolist():
            if row in self.poison:
                self._fail([row], ERROR, self.poison[row])
            elif self.stage.pixels and isinstance(self.prepared.get(row, _NO_IMAGE), Exception):
                self._reject(row, self.prepared.pop(row, _NO_IMAGE))
            else:
                self._buffer.append(row)

    def _reject(self, row: int, error: Exception) -> None:
        """Record the exception that `prepare` raised for a row."""
        if isinstance(error, PrepareError):
            self.facts.messages[error.kind] = str(error)
            self._fail([row], ERROR, error.kind)
        else:
            self._fail([row], UNUSABLE, redact(error.reason) if isinstance(error, Reject) else "no_data")

    def _reuse(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Copy known answers. The first of several rows with the same input is computed, and the others wait for it.
        Returns the rows to compute."""
        inputs = self.facts.input
        assert inputs is not None
        if not self._looked_up[rows].all():  # the input in a table may be that of an error's null
            self._look_up(rows[~self._looked_up[rows]])
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
            elif first >= 0 and self.facts.status[first] != ERROR:
                self.facts.follow(row, first)
                self._mark([row])
                self.facts.own[row] = self.facts.marked[first] and not self.facts.marked[row]
            else:
                self._first[given] = row
                left.append(row)
        for table, mine, places in hits.values():
            self.facts.copy(mine, table, places)
            self.facts.own[mine] = [inputs[row] in self._own for row in mine]
            self._mark(mine)
        return np.array(left, dtype=np.int64)

    def _mark(self, rows: list[int]) -> None:
        """Note for rows with new facts whether these come from an error's null."""
        for row in rows if self.prepared or self.spec.may_mark else ():
            self.prepared.pop(row, None)
            if self.spec.may_mark:
                self.facts.marked[row] = self._marks(row, row + 1)[0]

    def _fail(self, rows: list[int], status: int, reason: str) -> None:
        self._accept(rows, BatchResult.without(self.ready().schema(), [status] * len(rows), [reason] * len(rows)))

    def _batch(self) -> list[int]:
        """Rows of the next batch: as many as fit, or one that may hang."""
        rows = [self._buffer.popleft()]
        while self._buffer and len(rows) < self.stage.batch_rows:
            if rows[-1] in self.alone or self._buffer[0] in self.alone:
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
            except AssertionError as error:  # the stage's columns differ from its schema
                raise CurateError(f"{error}; fix the stage") from error
            pulse.done(self.name, 0, time.perf_counter() - began, self._bytes(rows, table))
        self._accept(rows, made)
        if self.stage.costly and self.task.sink == "publish":
            self._log.add([(rows, made)])
        self.report()

    def _bytes(self, rows: list[int], table: pa.Table) -> int:
        """Bytes that a batch was computed from: its images, or its columns."""
        if not self.stage.pixels:
            return int(table.nbytes)
        return int(pc.sum(self.unit.pool(("size",)).column(0).take(pa.array(rows))).as_py() or 0)

    def _accept(self, rows: list[int], made: BatchResult) -> None:
        facts = self.facts
        facts.add(rows, made.table, made.status, made.reason)
        self._published = False
        self._done[rows] = True
        facts.own[rows] = True
        facts.counters += made.counters
        facts.messages |= made.messages
        facts.count(rows, "computed")
        self.unit.computed += len(rows)
        facts.count(rows, "requests", made.computed)
        self._mark(rows)
        for row in rows if facts.input is not None and self._twins else ():
            given = facts.input[row]  # type: ignore[index]
            twins = self._twins.pop(given, [])
            if twins and facts.status[row] == ERROR:  # an error is not an answer: the next row is computed
                self._first[given], self._twins[given] = twins[0], twins[1:]
                self._buffer = deque(sorted([*self._buffer, twins[0]]))
                continue
            for twin in twins:
                facts.follow(twin, row)
                self._mark([twin])

    def _unfinished(self) -> int:
        """The first row without a result."""
        return self._buffer[0] if self._buffer else self.cursor

    def _open(self) -> int:
        return len(self._buffer)

    def _settle(self) -> None:
        """Record the fate of rows with a result in `after`."""
        start, stop = self.resolved, self._unfinished()
        if start >= stop:
            return
        fate = self.before.slice(start, stop)
        status = self.facts.status[start:stop]
        if not self.spec.keep_null:
            left = np.flatnonzero(fate.alive & ((status == UNUSABLE) | (status == ERROR)))
            fate.leave(left, self.spec.place, self.facts.reason[start:stop][left])
        if self.spec.may_mark or self.spec.keep_null:
            fate.marked |= self.facts.marked[start:stop] | (status == ERROR)
        self.after.put(start, fate)
        self.resolved = stop

    # --- results ---

    def wait_for_answers(self, until: float) -> bool:
        """Before the unit stops early: accept results until `until` (time.monotonic()); returns whether any arrived."""
        return False

    def save(self) -> None:
        """Log what was computed since the last time, so that it outlasts a kill."""
        self._log.flush()

    def _log_rows(self, several: list[Any]) -> pa.Table:
        """A segment of the log with some batches."""
        whole = reduce(add, (made for _, made in several))
        return self.facts.logged([row for rows, _ in several for row in rows], whole, self.stage.hardware())

    def close(self) -> None:
        """The unit has ended, with or without an error. Stale results are not logged: they would be put into tables
        beside the values that replaced their inputs."""
        self._log.close(self._published or self.stale)

    def publish(self, whole: bool = True) -> bool:
        """Publish new facts in tables; returns whether values changed because another run published first."""
        if whole and any(not self.facts.numbers.get(shard.id, 0) for shard in self.unit.shards):
            self.ready()  # a new table needs the columns' types
        changed = self.facts.publish(self.stage.hardware() if self._ready else "", whole)
        self._published = True
        return changed

    def answers(self) -> dict[bytes, Answer]:
        """What this attempt has computed, by input, for the next attempt."""
        if self.facts.input is None:
            return {}
        rows = np.flatnonzero(self._done & (self.facts.status != ERROR) & ~self.facts.marked)
        shards = self.unit.shard_indices(rows)
        tables = [self.facts.table_of(shard, rows[shards == shard]) for shard in np.unique(shards).tolist()]
        return {given: (table, row) for table in tables for row, given in enumerate(table.column(INPUT).to_pylist())}

    def table(self, index: int) -> pa.Table:
        """A shard's table as it would be published now."""
        start, stop = self.unit.edges[index : index + 2]
        return self.facts.table_of(index, start + np.flatnonzero(self.facts.status[start:stop] != MISSING))

    def result(self, index: int, start: int, stop: int) -> StageResult:
        entry = self.entry(start, stop)
        alive, status = self.before.alive[start:stop], self.facts.status[start:stop]
        for code, counted in ((UNUSABLE, entry.unusable), (ERROR, entry.error)):
            counted.update(self.facts.reason[start:stop][alive & (status == code)].tolist())
        entry.kept = entry.lost.total() if self.spec.keep_null else 0
        notes = self.facts.notes.get(self.unit.shards[index].id)
        entry.counters = notes.counters if notes is not None else entry.counters
        found: StageResult = {"entry": entry.check(self.name).to_json()}
        return found | self.facts.result(index) | {"seconds": round(self.seconds / max(1, len(self.unit.shards)), 4)}


_NO_IMAGE = LookupError("the row has no image")
