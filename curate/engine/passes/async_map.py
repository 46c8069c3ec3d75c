"""An AsyncMap in a pass: requests for the rows without an answer, many in flight, and their results.

The unit's thread makes requests ahead and accepts answers in groups; the process's event loop sends the requests
(`curate/engine/requests`). An answer goes to the unit's log (`answers/log.py`) when it arrives, also while the unit's
thread is busy, and is durable within a second.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa

from curate.core.contracts import AsyncMap
from curate.core.errors import CurateError, Reject
from curate.core.nouns.facts import ERROR, UNUSABLE
from curate.core.secrets import redact
from curate.core.spend import Spend, combined
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
"""How long a unit waits until its answers can be logged."""
SMALL = 4096
"""Bytes up to which a request is kept until the unit ends, so that an equal request is not sent again."""
BUDGET = ByteBudget(256 << 20)
"""Bytes of the process's requests without an answer."""
log = logging.getLogger("curate")


class AsyncMember(MapMember):
    stage: AsyncMap

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._requester: Requester | None = None
        self._most = in_flight(self.stage)
        self._denied: list[int] = []
        """Rows that the run's budget is not enough for: no further request is sent, those in flight are waited for."""
        self._flying: dict[Future[Answered], Hashable] = {}
        self._rows: dict[Hashable, list[int]] = {}
        """Request in flight -> its rows."""
        self._making: list[int] = []
        """Rows taken from the buffer whose requests are not all sent or settled yet."""
        self._settled: dict[Hashable, tuple[int, Answered]] = {}
        """Small request with an answer -> its first row, and the answer."""
        self._ended: queue.SimpleQueue[tuple[Future[Answered], int]] = queue.SimpleQueue()
        """Requests that have ended, and how many of their rows are in the log."""
        self._fitting = threading.Lock()
        """Held while answers are fitted to the schema, by the unit's thread or the log's."""

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
        if self.spec.may_mark:
            self.facts.marked[row] = self._marks(row, row + 1)[0]  # such an answer is not logged
        if request in self._rows:
            self._rows[request].append(row)
        elif request in self._settled:
            first, answered = self._settled[request]
            self.facts.follow(row, first)
            self._done[row] = self.facts.own[row] = True
            self._mark([row])
            self._log.add([(row, answered)])
        else:
            self._send(row, request)
        return None

    def _send(self, row: int, request: Hashable) -> None:
        if self._requester is None:
            self._requester = Requester(self.ready(), self.task.limiter)
            self._log.start()
        self._wait_for_log()
        size = weight(request)
        while not BUDGET.take(size, LOOK_SECONDS):
            if self._flying:
                self._collect()
            else:
                self._check_stop()
        self._rows[request] = rows = [row]
        future = self._requester.send(request)
        self._flying[future] = request
        future.add_done_callback(partial(self._ended_in_loop, size, rows))

    def _wait_for_log(self) -> None:
        """While answers cannot be logged, send no request, accept answers, and give up after PATIENCE_SECONDS."""
        while (failure := self._log.failure) is not None:
            since, error = failure
            if time.monotonic() - since > PATIENCE_SECONDS:
                raise error
            if self._flying:
                self._collect()
            else:
                self._check_stop()
                time.sleep(LOOK_SECONDS)

    def _ended_in_loop(self, size: int, rows: list[int], future: Future[Answered]) -> None:
        """Called in the event loop's thread when a request has ended."""
        BUDGET.give(size)
        logged = [] if future.cancelled() else [(row, future.result()) for row in rows]
        self._log.add(logged)
        self._ended.put((future, len(logged)))

    # --- answers ---

    def _collect(self, wait: bool = True) -> None:
        """Accept a group of answers: wait for them, or take those that have arrived."""
        if self._requester is None or not (wait or self._ended.qsize()):
            return
        pulse, began, seen = beat.current(), time.monotonic(), self._show_life()
        wanted = min(GROUP, self._most, len(self._flying)) if wait else self._ended.qsize()
        group: list[tuple[Future[Answered], int]] = []
        while len(group) < wanted and not (group and time.monotonic() - began > GROUP_SECONDS):
            try:
                group.append(self._ended.get(timeout=LOOK_SECONDS))
            except queue.Empty:
                if pulse.stopping:
                    break
                seen = self._show_life(seen)
        if group:
            self._accept_group(group, began)
        self._settle()
        self._check_stop()

    def _show_life(self, seen: int = -1) -> int:
        """Tell the beat that the unit does not hang: more attempts than `seen` have ended, or requests wait for the
        endpoint or for the limits of the run. Returns how many have ended."""
        assert self._requester is not None
        if self._requester.ended != seen or self._requester.waiting:
            beat.current().doing(self.name, sorted(self._in_flight())[:GROUP])
        return self._requester.ended

    def _accept_group(self, group: Sequence[tuple[Future[Answered], int]], began: float) -> None:
        """Accept the results of requests that have ended; the wait for them began at `began` (time.monotonic())."""
        requests = [self._flying.pop(future) for future, _ in group]
        ended = [(self._rows.pop(request), of[0].result()) for request, of in zip(requests, group, strict=True)]
        for (rows, answered), (_, logged) in zip(ended, group, strict=True):
            self._log.add((row, answered) for row in rows[logged:])  # equal requests since the answer arrived
        sent = sum(answered.sent_bytes for _, answered in ended)
        pulse = beat.current()
        pulse.done(self.name, 0, time.monotonic() - began, sent)
        spend: dict[str, Spend] = {}
        for _, answered in ended:
            spend = combined(spend, answered.spend)
        for endpoint, of_group in spend.items():
            pulse.spent(self.name, endpoint, of_group)
        self._denied += [row for rows, answered in ended for row in rows if answered.over]
        self._accept_all(ended)
        for request, (rows, answered) in zip(requests, ended, strict=True):
            if answered.has_result and answered.status != ERROR and weight(request) <= SMALL:
                self._settled[request] = rows[0], answered
        self.report()
        fatal = next((answered.fatal for _, answered in ended if answered.fatal), None)
        if fatal is not None:
            raise fatal

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
        pairs = [(row, answered) for rows, answered in ended for row in rows if answered.has_result]
        if pairs:
            made = self._results([answered for _, answered in pairs])
            made.computed = sum(answered.requests for _, answered in ended)
            self._accept([row for row, _ in pairs], made)

    def _log_rows(self, several: list[tuple[int, Answered]]) -> pa.Table:
        pairs = [(row, answered) for row, answered in several if answered.has_result]
        made = self._results([answered for _, answered in pairs])
        return self.facts.logged([row for row, _ in pairs], made, self.stage.hardware())

    def _results(self, several: Sequence[Answered]) -> BatchResult:
        with self._fitting:
            table = self._table(several)
        secrets = self.stage.secrets().values()
        reasons = np.array([*(answered.reason and redact(answered.reason) for answered in several), None], object)
        made = BatchResult(table, np.array([answered.status for answered in several], np.int8), reasons[:-1])
        made.messages = {
            redact(str(answered.reason)): redact(answered.message, secrets)
            for answered in several
            if answered.status == ERROR and answered.message
        }
        return made

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

    def save(self) -> None:
        """Its answers are logged when they arrive."""

    def close(self) -> None:
        arrived = {future for future in self._flying if not future.cancel()}
        self._published &= not arrived
        with contextlib.suppress(queue.Empty):
            while arrived:  # until the event loop's thread has logged their answers
                arrived.discard(self._ended.get(timeout=LAST_SECONDS)[0])
        self._flying.clear()
        self._rows.clear()
        if self._requester is not None:
            self._requester.close()
            self._requester = None
        super().close()
