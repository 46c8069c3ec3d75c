"""An AsyncMap in a pass: requests for the rows that lack an answer, many in flight, and what came of them.

The unit's thread makes requests ahead of those in flight and takes in answers by groups; the requests themselves run in
the process's event loop (`asking`). Answers go to the worker's log (`answer_log`) until the unit's tables are
published.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import sys
import time
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.contracts import AsyncMap
from curate.core.errors import CurateError, Reject, StorageError
from curate.core.facts import DONE, ERROR, UNUSABLE
from curate.core.recipe.secrets import redact
from curate.engine.passes import answer_log
from curate.engine.passes.ahead import Room
from curate.engine.passes.answers import Answer
from curate.engine.passes.asking import Answered, Asker
from curate.engine.passes.batches import Produced, to_table
from curate.engine.passes.map import MapMember
from curate.engine.workers import beat

GROUP = 32
"""Answers that are taken in at once."""
GROUP_SECONDS = 1.0
"""How long the first answer of a group waits for the others."""
LOOK_SECONDS = 0.5
"""Between two looks at whether the unit is to stop, while no answer comes."""
SMALL = 4096
"""Bytes up to which a request is kept for the unit's time, so that an equal one is not asked again."""
ROOM = Room(256 << 20)
"""Bytes of requests that the units of a process have made and that have no answer yet."""
log = logging.getLogger("curate")


class AsyncMember(MapMember):
    stage: AsyncMap

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._unit = self.task.units[0] if self.task.units else answer_log.token(s.id for s in self.unit.shards)
        self._log = answer_log.log_of(self.task.storage, self.step.path)
        self._asker: Asker | None = None
        self._flying: dict[Future[Answered], Hashable] = {}
        self._rows: dict[Hashable, list[int]] = {}
        """Request in flight -> the rows that it is for."""
        self._making: list[int] = []
        """Rows whose requests are being made: no longer in the buffer, and not all in flight or through."""
        self._asked: dict[Hashable, int] = {}
        """Small request -> the first row that it was made for."""
        self._ended: queue.SimpleQueue[Future[Answered]] = queue.SimpleQueue()
        self._left: answer_log.Left | None = None
        self._again = {given for inputs in self.task.asked.get(self.name, {}).values() for given in inputs}
        """Inputs of requests that were in flight when a worker died."""
        self._logged: set[bytes] = set()
        """Inputs whose answers were found in a log."""

    # --- going over the rows ---

    def _work(self) -> None:
        self._ask()

    def _finish(self) -> None:
        while self._buffer or self._flying:  # a row whose twin got an error is asked for itself
            self._ask()
            if self._flying:
                self._collect()

    def _on_its_way(self) -> int:
        return min([super()._on_its_way(), *self._making, *self._in_flight()])

    def _in_flight(self) -> list[int]:
        return [row for rows in self._rows.values() for row in rows]

    def _find(self, wanted: Mapping[bytes, str]) -> dict[bytes, Answer]:
        """Stored answers, and those that an earlier attempt at this unit has logged."""
        found = super()._find(wanted)
        if self._left is None and len(found) < len(wanted) and not self.task.dry:
            with suppress(
                StorageError, OSError
            ):  # an attempt in this process may have had answers that it could not log
                self._log.leave(self._unit)
            self._left = answer_log.left_by(self.task.storage, self.step.path, [self._unit, *self.task.units])
            self._again |= {given for inputs in self._left.asked.values() for given in inputs}
        if self._left is not None:
            logged = {given: self._left.places[given] for given in wanted if given in self._left.places}
            self._logged |= logged.keys() - found.keys()
            found = {given: (self._left.answers, row) for given, row in logged.items()} | found
        return found

    def _reuse(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        left = super()._reuse(rows)
        for row in rows.tolist() if self._logged else ():
            self.held.own[row] |= self._input(row) in self._logged  # no index leads to a log
        return left

    # --- asking ---

    def _ask(self) -> None:
        """Make requests for the rows that wait, twice as many as may be in flight; take in answers meanwhile."""
        while self._buffer:
            rows = self._making = self._next()
            if rows:
                values = self.values(np.array(rows, dtype=np.int64)).to_pylist()
                said = [([row], self._request(row, of_row)) for row, of_row in zip(rows, values, strict=True)]
                self._accept_all([(row, answered) for row, answered in said if answered is not None])
                self._making = []
            else:
                self._collect()
        self._collect(wait=False)

    def _next(self) -> list[int]:
        """Rows to make requests for, as many as there is room for; a row that may hang is in flight alone."""
        flying = self._in_flight() if self.careful else []
        if flying and self.careful.intersection([self._buffer[0], *flying]):
            return []
        free = 2 * self.stage.max_in_flight - len(self._flying)
        rows: list[int] = []
        while self._buffer and len(rows) < min(free, GROUP):
            if rows and (self._buffer[0] in self.careful or rows[0] in self.careful):
                break
            rows.append(self._buffer.popleft())
        return rows

    def _request(self, row: int, values: dict[str, Any]) -> Answered | None:
        """Ask for a row. Returns what came of it if nothing has to be asked."""
        stage = self.ready()
        assert isinstance(stage, AsyncMap)
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
        first = self._asked.get(request, row)
        if request in self._rows:
            self._rows[request].append(row)
        elif first != row and self.held.status[first] in (DONE, UNUSABLE):
            self.held.follow(row, first, list(stage.schema().names))
            self._done[row] = self.held.own[row] = True
            self._mark([row])
        else:
            self._send(row, request)
        return None

    def _send(self, row: int, request: Hashable) -> None:
        size = weight(request)
        while not ROOM.take(size, LOOK_SECONDS):
            if self._flying:
                self._collect()
            else:
                self._wind_down()
        if size <= SMALL:
            self._asked[request] = row
        if self._asker is None:
            self._asker = Asker(self.ready())  # type: ignore[arg-type]
        self._rows[request] = [row]
        given = self._input(row)
        self._log.ask(self._unit, given, *self._place(row))
        if given in self._again:
            self._again.remove(given)
            self.held.count([row], "asked_again")
        future = self._asker.ask(request)
        self._flying[future] = request
        future.add_done_callback(partial(self._over, size))

    def _over(self, size: int, future: Future[Answered]) -> None:
        """A request has ended. Called in the loop's thread."""
        ROOM.give(size)
        self._ended.put(future)

    def _input(self, row: int) -> bytes:
        assert self.held.input is not None
        return bytes(self.held.input[row])

    def _place(self, row: int) -> tuple[str, int]:
        """Shard of a row, and its place there."""
        index = int(np.searchsorted(self.unit.edges, row, side="right")) - 1
        return self.unit.shards[index].id, row - int(self.unit.edges[index])

    # --- what comes back ---

    def _collect(self, wait: bool = True) -> None:
        """Take in a group of answers, after a while if need be, or what is there."""
        if self._asker is None or not (wait or self._ended.qsize()):
            return
        pulse, began, seen = beat.current(), time.monotonic(), self._asker.ended
        pulse.doing(self.name, sorted(self._in_flight())[:GROUP])
        wanted = min(GROUP, self.stage.max_in_flight, len(self._flying)) if wait else self._ended.qsize()
        group: list[Future[Answered]] = []
        while len(group) < wanted and not (group and time.monotonic() - began > GROUP_SECONDS):
            try:
                group.append(self._ended.get(timeout=LOOK_SECONDS))
            except queue.Empty:
                self._flush_log()
                if pulse.stopping:
                    break
                if self._asker.ended != seen:  # an attempt has failed: slow, but it does not hang
                    seen = self._asker.ended
                    pulse.doing(self.name, sorted(self._in_flight())[:GROUP])
        if group:
            self._take_in(group, began)
        self._flush_log()
        self._settle()
        self._wind_down()

    def _take_in(self, group: Sequence[Future[Answered]], began: float) -> None:
        """Requests that have ended; they were waited for since `began` (time.monotonic())."""
        ended = [(self._rows.pop(self._flying.pop(future)), future.result()) for future in group]
        sent = sum(answered.sent_bytes for _, answered in ended)
        beat.current().done(self.name, len(group), time.monotonic() - began, sent)
        self._accept_all(ended)
        fatal = next((answered.fatal for _, answered in ended if answered.fatal), None)
        if fatal is not None:
            raise fatal

    def _flush_log(self) -> None:
        """A segment that cannot be written ends no requests: it is tried again with the next one. At the unit's end its
        tables hold the answers; if these cannot be written either, that is raised."""
        try:
            self._log.flush()
        except (StorageError, OSError) as error:
            log.warning("%s: answers could not be logged (%s); trying again", self.name, redact(str(error)))

    def _wind_down(self) -> None:
        """End here if the run was told to stop: what is answered is published."""
        if beat.current().stopping:
            self.after_batch()

    def last_answers(self, until: float) -> bool:
        came = False
        while self._flying and (left := until - time.monotonic()) > 0:
            began = time.monotonic()
            try:
                group = [self._ended.get(timeout=left)]
            except queue.Empty:
                break
            self._take_in([*group, *(self._ended.get() for _ in range(self._ended.qsize()))], began)
            came = True
        return came

    def _accept_all(self, ended: Sequence[tuple[list[int], Answered]]) -> None:
        """What came of some requests, each for one row or several."""
        pairs = [(row, answered) for rows, answered in ended for row in rows if answered.fatal is None]
        if not pairs:
            return
        table = self._table([answered for _, answered in pairs])
        secrets = self.stage.secrets().values()
        reasons = np.array([*(answered.reason and redact(answered.reason) for _, answered in pairs), None], object)
        made = Produced(table, np.array([answered.status for _, answered in pairs], np.int8), reasons[:-1])
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
        """Columns of some answers. One that does not fit the schema is in error."""
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
        """Write answers down in the log; an error is none, nor is what was computed from one."""
        held = self.held
        order = np.sort(np.array(rows, np.int64))
        final = order[(held.status[order] != ERROR) & ~held.marked[order]]
        table = None
        if len(final):
            tables = []
            for index in np.unique(np.searchsorted(self.unit.edges, final, side="right") - 1):
                low, high = self.unit.edges[index : index + 2]
                made = held.table_of(index, final[(final >= low) & (final < high)], self.stage.schema())
                shard = pa.array([self.unit.shards[index].id] * made.num_rows, pa.string())
                tables.append(made.append_column(answer_log.SHARD_FIELD, shard))
            table = pa.concat_tables(tables)
        self._log.add(self._unit, [self._input(row) for row in rows], table)

    def publish(self, whole: bool = True) -> bool:
        changed = super().publish(whole)
        if not self.task.probe:
            self._log.end(self._unit)
        return changed

    def close(self) -> None:
        for future in self._flying:
            future.cancel()
        self._flying.clear()
        self._rows.clear()
        if self._asker is not None:
            self._asker.close()
            self._asker = None
            with suppress(StorageError, OSError):  # there may be an error already, and this one would hide it
                self._log.leave(self._unit)


def weight(request: Any) -> int:
    """Bytes of a request, about."""
    if isinstance(request, (str, bytes)):
        return len(request)
    if dataclasses.is_dataclass(request):
        return sum(weight(getattr(request, item.name)) for item in dataclasses.fields(request))
    if isinstance(request, (tuple, frozenset)):
        return sum(weight(part) for part in request)
    return sys.getsizeof(request)
