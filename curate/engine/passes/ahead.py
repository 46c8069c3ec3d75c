"""Reading ahead of the models, bounded: so many chunks, and so many bytes that are not decoded yet."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

CHUNKS = 8
"""Chunks of a batch: it is computed as soon as its last row is there, and not when a whole batch more is."""
AHEAD = 2 * CHUNKS
"""Chunks that are read and decoded ahead of the one being computed: two batches."""
AHEAD_BYTES = 256 << 20
"""Encoded images that wait to be decoded, or are being decoded, in bytes; a larger one goes alone."""


class Room:
    """Bytes that may be under way at once. What is taken is given back by threads that wait for nobody, so whoever
    waits here goes on; one that is larger than all there is waits until it is alone."""

    def __init__(self, size: int) -> None:
        self._size, self._taken = size, 0
        self._changed = threading.Condition()

    def take(self, size: int, timeout_seconds: float | None = None) -> bool:
        """Wait until there is room; False where there was none in time."""
        with self._changed:
            found = self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._size, timeout_seconds)
            self._taken += size if found else 0
            return found

    def give(self, size: int) -> None:
        with self._changed:
            self._taken -= size
            self._changed.notify_all()


ROOM = Room(AHEAD_BYTES)
"""Of this process: its units, of whatever lane, share it."""


def read_ahead(
    make: Callable[[], Iterator[tuple[int, int, list[Future[dict[str, Any]] | None]]]],
    awaits: Callable[[int, int], None] = lambda start, stop: None,
) -> Iterator[tuple[int, int, list[dict[str, Any]]]]:
    """Run the producer in a thread, at most AHEAD chunks in front of the consumer; its errors are raised here. `awaits`
    is told which rows are waited for."""
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
        except Exception as error:  # noqa: BLE001 - handed over to the consumer, which raises it
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
