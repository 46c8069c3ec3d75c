"""Viewers of a run's stream. Threads publish bytes that are made once; each viewer has a bounded queue
in its own event loop, and one whose queue is full is dropped, so that a slow client delays no other."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from sse_starlette import ServerSentEvent

MOST_CHUNKS = 64
"""Most that waits for a viewer that does not keep up: about two minutes."""


def encoded(data: dict[str, Any], event: str | None = None, id: str | None = None) -> bytes:
    text = json.dumps(data, separators=(",", ":"), default=str)
    return ServerSentEvent(text, event=event, id=id, sep="\n").encode()


SLOW = encoded({"reason": "the client was too slow; connect again with Last-Event-ID"}, "gap")
BEHIND = encoded({"reason": "earlier events are left out"}, "gap")


class Viewer:
    """One open stream. Made and iterated in its event loop. `allowed` raises a Problem once its token or session has
    ended; only one of the viewers with the same `login` is asked."""

    def __init__(self, login: str = "", allowed: Callable[[], None] = lambda: None) -> None:
        self.login, self.allowed = login, allowed
        self.loop = asyncio.get_running_loop()
        self._chunks: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._over = False
        self.closed = False

    def push(self, chunk: bytes, over: bool = False) -> None:
        """In the loop. `over`: nothing follows."""
        if self._over:
            return
        if len(self._chunks) >= MOST_CHUNKS:
            chunk, over = SLOW, True
        if chunk:
            self._chunks.append(chunk)
        self._over = over
        self._wake.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            while self._chunks:
                yield self._chunks.popleft()
            if self._over:
                return
            self._wake.clear()
            await self._wake.wait()


def publish(viewers: Iterable[Viewer], chunk: bytes, over: bool = False) -> None:
    """From any thread: wakes each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Viewer]] = {}
    for viewer in viewers:
        by_loop.setdefault(viewer.loop, []).append(viewer)
    for loop, some in by_loop.items():
        try:
            loop.call_soon_threadsafe(_push, some, chunk, over)
        except RuntimeError:  # the loop is closed, and its viewers with it
            for viewer in some:
                viewer.closed = True


def _push(viewers: list[Viewer], chunk: bytes, over: bool) -> None:
    for viewer in viewers:
        viewer.push(chunk, over)
