"""The turn of a lane: of the units that share a GPU, one computes while the others read and publish."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from curate.engine.tasks import beat


class Turn:
    """A lock that one task holds at a time. A task waiting for it does not count as hung; its holder may."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: int | None = None

    def __enter__(self) -> None:
        mine = beat.current()
        with self._changed:
            while not self._changed.wait_for(lambda: self._holder is None, timeout=1.0):
                mine.moved = time.monotonic()
            self._holder = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self.free(threading.get_ident())

    def free(self, thread: int | None) -> None:
        """Release it on behalf of a thread that hung while holding it."""
        with self._changed:
            if self._holder == thread:
                self._holder = None
                self._changed.notify_all()


TURNS = {"gpu": Turn()}


def turn(lane: str) -> AbstractContextManager[Any]:
    """Context that a task of this lane computes in: tasks of a GPU lane compute one at a time."""
    return TURNS.get(lane) or nullcontext()
