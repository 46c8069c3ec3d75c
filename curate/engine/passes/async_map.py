"""An AsyncMap in a pass: requests for the rows without an answer, many in flight, and their results.

The unit's thread makes requests ahead and accepts answers in groups; the process's event loop sends the requests
(`curate/engine/requests`). Answers go to the worker's log (`answers/log.py`) until the unit's tables are published.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.contracts import AsyncMap
from curate.core.errors import CurateError, Reject, StorageError
from curate.core.nouns.facts import DONE, ERROR, UNUSABLE
from curate.core.secrets import redact
from curate.core.spend import Spend, combined
from curate.engine.passes.answers import log as answer_log
from curate.engine.passes.answers.index import Answer
from curate.engine.passes.batches import BatchResult, to_table
from curate.engine.passes.decode import ByteBudget
from curate.engine.passes.map import MapMember
from curate.engine.passes.task import Stopped
from curate.engine.requests.client import Answered, Requester, in_flight
from curate.engine.requests.costs import weight
from curate.engine.tasks import beat

GROUP = 32
"""Answers that are accepted at once."""
GROUP_SECONDS = 1.0
"""How long the first answer of a group waits for the others."""
LOOK_SECONDS = 0.5
"""Time between two checks whether the unit is to stop, while no answer arrives."""
AHEAD = 10_000
"""Rows that are looked up at once and queued. More are held in columns only."""
LAST_SECONDS = 3.0
"""How long a unit that is to stop waits for answers to requests in flight."""
PATIENCE_SECONDS = 60.0
"""How long a unit waits until its requests can be logged."""
SMALL = 4096
"""Bytes up to which a request is kept until the unit ends, so that an equal request is not sent again."""
BUDGET = ByteBudget(256 << 20)
"""Bytes of the process's requests without an answer."""
log = logging.getLogger("curate")


class AsyncMember(MapMember):
    stage: AsyncMap

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._unit = self.task.units[0] if self.task.units else answer_log.token(s.id for s in self.unit.shards)
        self._log = answer_log.log_of(self.task.storage, self.spec.path)
        self._requester: Requester | None = None
        self._most = in_flight(self.stage)
        self._denied: list[int] = []
        """Rows that the run's budget is not enough for: no further request is sent, those in flight are waited for."""
        self._flying: dict[Future[Answered], Hashable] = {}
        self._rows: dict[Hashable, list[int]] = {}
        """Request in flight -> its rows."""
        self._making: list[int] = []
        """Rows taken from the buffer whose requests are not all sent or settled yet."""
        self._sent: dict[Hashable, int] = {}
        """Small request -> its first row."""
        self._ended: queue.SimpleQueue[Future[Answered]] = queue.SimpleQueue()
        self._log_before: answer_log.Logged | None = None
        """Answers that earlier attempts at this unit have logged."""
        in_flight_then = self.task.in_flight.get(self.name, {}).values()
        self._interrupted = Counter(given for inputs in in_flight_then for given in inputs)
        """Inputs of requests that were in flight when a worker died -> how often."""
        self._again: dict[int, int] = {}
        """Row with such a request in flight -> how often."""
        self._from_log: set[bytes] = set()
        """Inputs whose answers are in a log only."""

    # --- going over the rows ---

    def _go_over(self, stop: int) -> Iterator[None]:
        while self.cursor < stop:
            yield from super()._go_over(min(stop, self.cursor + AHEAD))

    def _work(self) -> Iterable[None]:
        self._send_all()
        return ()

    def _finish(self) -> Iterable[None]:
        while self._buffer or self._flying or self._denied:  # rows wait for an equal one, which may end in error
            self._send_all()
            if self._flying or self._denied:
                self._collect()
        return ()

    def ready(self) -> AsyncMap:
        return cast("AsyncMap", super().ready())

    def _unfinished(self) -> int:
        return min([super()._unfinished(), *self._making, *self._denied, *self._in_flight()])

    def _open(self) -> int:
        return super()._open() + len({*self._making, *self._denied, *self._in_flight()})

    def _in_flight(self) -> list[int]:
        return [row for rows in self._rows.values() for row in rows]

    def _find(self, wanted: Mapping[bytes, str]) -> dict[bytes, Answer]:
        """Stored answers, and answers that an earlier attempt at this unit has logged."""
        found = super()._find(wanted)
        if self._log_before is None and len(found) < len(wanted):
            with suppress(StorageError, OSError):  # an earlier attempt in this process may hold unlogged answers
                self._log.leave(self._unit)
            self._log_before = answer_log.logged_by(self.task.storage, self.spec.path, [self._unit, *self.task.units])
            self._interrupted.update(self._log_before.times)
        if self._log_before is not None:
            logged = {given: self._log_before.places[given] for given in wanted if given in self._log_before.places}
            self._from_log |= logged.keys() - found.keys()
            found = {given: (self._log_before.answers, row) for given, row in logged.items()} | found
        return found

    def _reuse(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        left = super()._reuse(rows)
        for row in rows.tolist() if self._from_log else ():
            self.facts.own[row] |= self._input(row) in self._from_log  # the index does not cover logs
        return left

    # --- sending ---

    def _send_all(self) -> None:
        """Make requests for the queued rows, up to twice as many as may be in flight, and accept answers meanwhile."""
        while self._buffer:
            rows = self._making = self._next()
            if rows:
                values = self.values(np.array(rows, dtype=np.int64)).to_pylist()
                settled = [([row], self._request(row, of_row)) for row, of_row in zip(rows, values, strict=True)]
                self._accept_all([(row, answered) for row, answered in settled if answered is not None])
                self._making = []
            else:
                self._collect()
        self._collect(wait=False)

    def _next(self) -> list[int]:
        """Rows to make requests for, as many as there is room for; a row that may hang is in flight alone."""
        flying = self._in_flight() if self.alone else []
        if flying and self.alone.intersection([self._buffer[0], *flying]):
            return []
        free = 0 if self._denied else 2 * self._most - len(self._flying)
        rows: list[int] = []
        while self._buffer and len(rows) < min(free, GROUP):
            if rows and (self._buffer[0] in self.alone or rows[0] in self.alone):
                break
            rows.append(self._buffer.popleft())
        return rows

    def _request(self, row: int, values: dict[str, Any]) -> Answered | None:
        """Send a row's request. Returns the result if the row needs no request."""
        stage = self.ready()
        if stage.pixels:
            values["image"] = self.prepared.pop(row)
        try:
            request = stage.request(values)
        except Reject as reject:
            return Answered(None, UNUSABLE, reject.reason)
        except CurateError:
            raise
        except Exception as error:  # noqa: BLE001 - the sample boundary: one bad row is one row's status
            return Answered(None, ERROR, type(error).__name__, f"{type(error).__name__}: {error}")
        if request is None:
            return Answered(dict.fromkeys(stage.schema().names))
        first = self._sent.get(request, row)
        if request in self._rows:
            self._rows[request].append(row)
        elif first != row and self.facts.status[first] in (DONE, UNUSABLE):
            self.facts.follow(row, first)
            self._done[row] = self.facts.own[row] = True
            self._mark([row])
        else:
            self._send(row, request)
        return None

    def _send(self, row: int, request: Hashable) -> None:
        size = weight(request)
        while not BUDGET.take(size, LOOK_SECONDS):
            if self._flying:
                self._collect()
            else:
                self._check_stop()
        if size <= SMALL:
            self._sent[request] = row
        if self._requester is None:
            self._requester = Requester(self.ready(), self.task.limiter)
        given = self._input(row)
        if not self._log.is_announced(self._unit, given):
            self._announce(row)
        self._rows[request] = [row]
        self._log.sent(self._unit, given, *self._place(row))
        if times := self._interrupted.pop(given, 0):
            self.facts.count([row], "asked_again", times)
            self._again[row] = times
        future = self._requester.send(request)
        self._flying[future] = request
        future.add_done_callback(partial(self._ended_in_loop, size))

    def _announce(self, row: int) -> None:
        """Log the requests that will be sent from `row` on until the log is flushed again, so that those a kill repeats
        are counted. If that fails, accept answers meanwhile, and give up after PATIENCE_SECONDS."""
        rows = [*self._making[self._making.index(row) :], *self._buffer] if row in self._making else [row]
        count = max(1, 2 * self._most - len(self._flying)) + self._log.ahead()
        places = {self._input(other): self._place(other) for other in rows[:count]}
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._log.announce(self._unit, places)
                return
            except (StorageError, OSError) as error:
                if time.monotonic() > until:
                    raise
                log.warning("%s: cannot log requests (%s); sending none until it can", self.name, redact(str(error)))
            if self._flying:
                self._collect()
            else:
                self._check_stop()
                time.sleep(LOOK_SECONDS)

    def _ended_in_loop(self, size: int, future: Future[Answered]) -> None:
        """Called in the event loop's thread when a request has ended."""
        BUDGET.give(size)
        self._ended.put(future)

    def _input(self, row: int) -> bytes:
        assert self.facts.input is not None
        return bytes(self.facts.input[row])

    def _place(self, row: int) -> tuple[str, int]:
        """A row's shard, and the row's place there."""
        index = int(self.unit.shard_indices(row))
        return self.unit.shards[index].id, row - int(self.unit.edges[index])

    # --- answers ---

    def _collect(self, wait: bool = True) -> None:
        """Accept a group of answers: wait for them, or take those that have arrived."""
        if self._requester is None or not (wait or self._ended.qsize()):
            return
        pulse, began, seen = beat.current(), time.monotonic(), self._show_life()
        wanted = min(GROUP, self._most, len(self._flying)) if wait else self._ended.qsize()
        group: list[Future[Answered]] = []
        while len(group) < wanted and not (group and time.monotonic() - began > GROUP_SECONDS):
            try:
                group.append(self._ended.get(timeout=LOOK_SECONDS))
            except queue.Empty:
                self._flush_log()
                if pulse.stopping:
                    break
                seen = self._show_life(seen)
        if group:
            self._accept_group(group, began)
        self._flush_log()
        self._settle()
        self._check_stop()

    def _show_life(self, seen: int = -1) -> int:
        """Tell the beat that the unit does not hang: more attempts than `seen` have ended, or requests wait for the
        endpoint or for the limits of the run. Returns how many have ended."""
        assert self._requester is not None
        if self._requester.ended != seen or self._requester.waiting:
            beat.current().doing(self.name, sorted(self._in_flight())[:GROUP])
        return self._requester.ended

    def _accept_group(self, group: Sequence[Future[Answered]], began: float) -> None:
        """Accept the results of requests that have ended; the wait for them began at `began` (time.monotonic())."""
        ended = [(self._rows.pop(self._flying.pop(future)), future.result()) for future in group]
        sent = sum(answered.sent_bytes for _, answered in ended)
        pulse = beat.current()
        pulse.done(self.name, 0, time.monotonic() - began, sent)
        spend: dict[str, Spend] = {}
        for _, answered in ended:
            spend = combined(spend, answered.spend)
        for endpoint, of_group in spend.items():
            pulse.spent(self.name, endpoint, of_group)
        for rows, answered in ended:
            if rows[0] in self._again:  # it may have been several requests then, as it is now
                self.facts.count(rows[:1], "asked_again", max(0, answered.requests - 1) * self._again.pop(rows[0]))
        self._denied += [row for rows, answered in ended for row in rows if answered.over]
        unsent = [row for rows, answered in ended for row in rows if answered.over and not answered.requests]
        self._log.add(self._unit, [self._input(row) for row in unsent], None)  # they are not repeated
        self._accept_all(ended)
        self.report()
        fatal = next((answered.fatal for _, answered in ended if answered.fatal), None)
        if fatal is not None:
            raise fatal

    def _flush_log(self) -> None:
        """Log new answers. If a segment cannot be written, its answers go into the next one. At the unit's end the
        tables hold all answers; an error in writing those is raised."""
        try:
            self._log.flush()
        except (StorageError, OSError) as error:
            log.warning("%s: cannot log answers (%s); retrying with the next segment", self.name, redact(str(error)))

    def _check_stop(self) -> None:
        """Raise Stopped if the run is to stop, or if its budget is used up and nothing is in flight."""
        if self._denied and not self._flying:
            raise Stopped
        if beat.current().stopping and self.task.sink == "publish":
            raise Stopped

    def wait_for_answers(self, until: float) -> bool:
        came, seen, began = False, -1, time.monotonic()
        while self._flying and (left := until - time.monotonic()) > 0:
            try:
                group = [self._ended.get(timeout=min(left, LOOK_SECONDS))]
            except queue.Empty:
                seen = self._show_life(seen)
                if beat.current().stopping:
                    until = min(until, time.monotonic() + LAST_SECONDS)
                continue
            self._accept_group([*group, *(self._ended.get() for _ in range(self._ended.qsize()))], began)
            came, began = True, time.monotonic()
        return came

    def _accept_all(self, ended: Sequence[tuple[list[int], Answered]]) -> None:
        """Accept the results of requests, each for one row or several."""
        pairs = [(row, answered) for rows, answered in ended for row in rows if not (answered.fatal or answered.over)]
        if not pairs:
            return
        table = self._table([answered for _, answered in pairs])
        secrets = self.stage.secrets().values()
        reasons = np.array([*(answered.reason and redact(answered.reason) for _, answered in pairs), None], object)
        made = BatchResult(table, np.array([answered.status for _, answered in pairs], np.int8), reasons[:-1])
        made.messages = {
            redact(str(answered.reason)): redact(answered.message, secrets)
            for _, answered in pairs
            if answered.status == ERROR and answered.message
        }
        made.computed = sum(answered.requests for _, answered in ended)
        rows = [row for row, _ in pairs]
        self._accept(rows, made)
        self._note(rows)

    def _table(self, several: Sequence[Answered]) -> pa.Table:
        """Columns of some answers. An answer that does not fit the schema gets an error."""
        try:
            return self._columns(several)
        except AssertionError:
            for answered in several:
                try:
                    self._columns([answered])
                except AssertionError as error:
                    answered.columns, answered.status = None, ERROR
                    answered.reason, answered.message = "bad_columns", str(error)
            return self._columns(several)

    def _columns(self, several: Sequence[Answered]) -> pa.Table:
        schema = self.stage.schema()
        nothing = dict.fromkeys(schema.names)
        found = [nothing if answered.columns is None else answered.columns for answered in several]
        for columns in found:
            if columns.keys() != nothing.keys():
                raise AssertionError(f"{self.stage.op}: answer returned {sorted(columns)}, not {schema.names}")
        return to_table(self.stage, schema, {name: [row[name] for row in found] for name in schema.names}, len(found))

    def _note(self, rows: list[int]) -> None:
        """Log final answers: no errors, and nothing computed from one."""
        facts = self.facts
        order = np.sort(np.array(rows, np.int64))
        final = order[(facts.status[order] != ERROR) & ~facts.marked[order]]
        table = None
        if len(final):
            tables = []
            for index in np.unique(self.unit.shard_indices(final)):
                low, high = self.unit.edges[index : index + 2]
                made = facts.table_of(index, final[(final >= low) & (final < high)])
                shard = pa.array([self.unit.shards[index].id] * made.num_rows, pa.string())
                tables.append(made.append_column(answer_log.SHARD_FIELD, shard))
            table = pa.concat_tables(tables)
        again = np.setdiff1d(order, final).tolist()
        self._log.add(self._unit, [self._input(row) for row in rows], table, [self._input(row) for row in again])

    def publish(self, whole: bool = True) -> bool:
        changed = super().publish(whole)
        if self.task.sink == "publish":
            self._log.end(self._unit)
        return changed

    def close(self) -> None:
        for future in self._flying:
            future.cancel()
        self._flying.clear()
        self._rows.clear()
        if self._requester is not None:
            self._requester.close()
            self._requester = None
            with suppress(StorageError, OSError):  # must not hide an earlier error
                self._log.leave(self._unit)
