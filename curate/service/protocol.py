"""HTTP for clients that may be slow on purpose: uvicorn itself waits for a request indefinitely."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 30.0
"""From the first byte of a request, or from the connection, to the last byte of its body."""


class Protocol(H11Protocol):
    """Closes a connection whose request is not complete in time. Answers may take as long as they like."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._awaited():
            self._settle()
        elif self._late is None:
            self._late = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def _awaited(self) -> bool:
        """Whether a part of a request is missing."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _settle(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if self._awaited() and not self.transport.is_closing():
            self.transport.abort()
