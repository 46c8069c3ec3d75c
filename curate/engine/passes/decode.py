"""The path of one image: its bytes are read from the tar, decoded and prepared in threads ahead of the models, once.

An image is prepared for every Map of the pass that may need it. A filter of the same pass judges the image too late to
save its preparation, but in time to save the model. Memory is bounded: AHEAD chunks of prepared images, and
ENCODED_BYTES of images that are not decoded yet.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.codec import media
from curate.codec.members import member_columns, read_members
from curate.core.contracts import Sample, trait
from curate.core.errors import CurateError, Reject, Undecodable
from curate.core.reader import LostError, Reader
from curate.core.secrets import redact
from curate.engine.passes.batches import PrepareError
from curate.engine.passes.map import MapMember
from curate.engine.passes.unit import Unit
from curate.engine.tasks import beat

CHUNKS = 8
"""Chunks of a batch, so that a batch is computed as soon as its last row arrives, not up to a batch later."""
AHEAD = 2 * CHUNKS
"""Chunks read and decoded ahead of the one that is computed: two batches."""
ENCODED_BYTES = 256 << 20
"""Bytes of encoded images that wait for a decoding thread or are in one; a larger image goes alone."""
Prepared = dict[str, Any]
"""Member -> what its `prepare` returned for an image, or the exception that it raised."""


class ByteBudget:
    """Bytes that may be in use at once. A request larger than the budget waits until nothing else is in use.

    No deadlock: the threads that give bytes back never wait for the budget."""

    def __init__(self, size: int) -> None:
        self._size, self._taken = size, 0
        self._changed = threading.Condition()

    def take(self, size: int, timeout_seconds: float | None = None) -> bool:
        """Wait for room; False if the time is up first."""
        with self._changed:
            found = self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._size, timeout_seconds)
            self._taken += size if found else 0
            return found

    def give(self, size: int) -> None:
        with self._changed:
            self._taken -= size
            self._changed.notify_all()


BUDGET = ByteBudget(ENCODED_BYTES)
"""Shared by all units of the process, in any lane."""


class Decoder:
    """Prepares a unit's images for the Maps that look at pixels."""

    def __init__(self, unit: Unit, members: Sequence[MapMember], alone: Collection[int]) -> None:
        self.unit, self.members, self.alone = unit, members, alone
        self.chunk = max([1, *(member.stage.batch_rows // CHUNKS for member in members)])
        self.beat = beat.current()

    def run(self, first: int, last: int) -> Iterator[int]:
        """Fill each member's `prepared`, in order of rows; yields the row up to which it is filled."""
        wanted = np.zeros(self.unit.rows, dtype=bool)
        for member in self.members:
            with member.named():
                wanted |= member.may_need()
        wanted[:first] = wanted[last:] = False
        if not wanted.any():
            return
        chunks = [chunk for chunk in self._chunks(first, last) if wanted[slice(*chunk)].any()]
        threads = max(1, max(int(getattr(member.stage, "threads", 1)) for member in self.members))
        with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
            for start, stop, prepared in read_ahead(
                lambda: self._submitted(pool, chunks, wanted),
                lambda start, stop: self.beat.doing(self.members[0].name, range(start, stop)),
            ):
                for row, values in zip(range(start, stop), prepared, strict=True):
                    for member in self.members:
                        if member.name in values:
                            member.prepared[row] = values[member.name]
                yield stop

    def _chunks(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows; a row that may hang is alone in its chunk."""
        start = first
        while start < last:
            stop = start + 1
            while start not in self.alone and stop < min(start + self.chunk, last) and stop not in self.alone:
                stop += 1
            yield start, stop
            start = stop

    def _submitted(
        self, pool: ThreadPoolExecutor, chunks: list[tuple[int, int]], wanted: NDArray[np.bool_]
    ) -> Iterator[tuple[int, int, list[Future[Prepared] | None]]]:
        data = self._encoded(np.flatnonzero(wanted))
        for start, stop in chunks:
            rows = range(start, stop)
            yield start, stop, [self._submit(pool, row, next(data)) if wanted[row] else None for row in rows]

    def _encoded(self, rows: NDArray[np.int64]) -> Iterator[Reader | Reject]:
        """Encoded images of some rows (ascending), shard by shard."""
        places = self.unit.pool(member_columns(self.unit.shards)).take(pa.array(rows))
        for index, shard in enumerate(self.unit.shards):
            low, high = np.searchsorted(rows, self.unit.edges[index : index + 2])
            if low < high:
                yield from read_members(self.unit.storage, shard, places.slice(low, high - low).to_pydict())

    def _submit(self, pool: ThreadPoolExecutor, row: int, data: Reader | Reject) -> Future[Prepared]:
        """Queue an image for the decoding threads, once the budget has room for its bytes."""
        size = 0 if isinstance(data, Reject) else data.size
        BUDGET.take(size)
        future = pool.submit(self._prepare, row, data)
        future.add_done_callback(lambda _: BUDGET.give(size))
        return future

    def _prepare(self, row: int, data: Reader | Reject) -> Prepared:
        lost_file: Exception | None = None
        if isinstance(data, Reject):  # what cannot be extracted stays so
            lost_file = data if isinstance(data, Undecodable) else PrepareError(data.reason, str(data))
        content = Reader(b"") if isinstance(data, Reject) else data
        samples: dict[tuple[str, ...], Sample] = {}
        """Media that members see -> the sample, decoded once."""
        values: Prepared = {}
        for member in self.members:
            lost = any(isinstance(values.get(name), Exception) for name in member.depends)
            if lost or not member.wanted[row] or row in member.poison:
                continue
            if lost_file is not None:
                values[member.name] = lost_file
                continue
            began = time.perf_counter()
            try:
                sees = trait(member.stage, "sees")
                if sees not in samples:
                    samples[sees] = Sample(content, media.opener(content, sees))
                values[member.name] = member.stage.prepare(samples[sees])
            except LostError as gone:
                values[member.name] = PrepareError(gone.reason, str(gone))
            except Reject as reject:
                values[member.name] = reject
            except CurateError:
                raise
            except Exception as error:  # noqa: BLE001 - the sample boundary: one bad sample is one row's status
                text = redact(f"{type(error).__name__}: {error}", member.stage.secrets().values())
                values[member.name] = PrepareError(type(error).__name__, text)
            member.seconds += (time.perf_counter() - began) / max(1, getattr(member.stage, "threads", 1))
        return values


def read_ahead(
    make: Callable[[], Iterator[tuple[int, int, list[Future[Prepared] | None]]]],
    awaits: Callable[[int, int], None] = lambda start, stop: None,
) -> Iterator[tuple[int, int, list[Prepared]]]:
    """Run the producer in a thread, at most AHEAD chunks in front of the consumer, and raise its errors here. `awaits`
    is called with the rows (start, stop) that the consumer waits for."""
    chunks: queue.Queue[Any] = queue.Queue(maxsize=AHEAD)
    stop = threading.Event()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                chunks.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for item in make():
                if not put(item):
                    return
            put(None)
        except Exception as error:  # noqa: BLE001 - the consumer raises it
            put(error)

    thread = threading.Thread(target=produce, daemon=True, name="read-ahead")
    thread.start()
    try:
        while (item := chunks.get()) is not None:
            if isinstance(item, Exception):
                raise item
            start, end, futures = item
            awaits(start, end)
            yield start, end, [future.result() if future is not None else {} for future in futures]
    finally:
        stop.set()
        thread.join()
