"""HTTP for clients that may be slow on purpose: uvicorn itself waits indefinitely for a request, and for a client that
does not read its answer.

Once there are as many connections as `limit_concurrency` allows, a new one replaces the one that has sent no complete
request for longest. If all others are being answered, that is itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 30.0
"""From the first byte of a request, or from the connection, to the last byte of its body."""
ANSWER_SECONDS = 60.0
"""A client that takes nothing of its answer for so long is dropped."""


class Timer:
    """Calls a function once after a while."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        self._loop, self._function = loop, function
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Unless it runs already."""
        self._handle = self._handle or self._loop.call_later(seconds, self._end)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _end(self) -> None:
        self._handle = None
        self._function()


class Protocol(H11Protocol):
    """Closes a connection whose request is not complete in time. Answers may take as long as they like."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._late, self._unread = Timer(self.loop, self._give_up), Timer(self.loop, self.drop)
        self._since = self.loop.time()
        """When it was made, or its last answer was complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late.start(REQUEST_SECONDS)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            waiting = [one for one in self.connections if isinstance(one, Protocol) and one.awaited]
            min(waiting, key=lambda one: one._since).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        self._unread.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.awaited:
            self._late.start(REQUEST_SECONDS)
        else:
            self._late.cancel()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.start(ANSWER_SECONDS)

    def resume_writing(self) -> None:
        self._unread.cancel()
        super().resume_writing()

    @property
    def awaited(self) -> bool:
        """Whether a part of a request is missing."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def drop(self) -> None:
        if not self.transport.is_closing():
            self.connections.discard(self)  # `connection_lost` comes later
            self.transport.abort()

    def _give_up(self) -> None:
        if self.awaited:
            self.drop()
