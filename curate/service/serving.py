"""Serves the application on a socket, until SIGTERM or Ctrl-C.

Clients may be slow on purpose, and uvicorn itself waits indefinitely for a request, and for a client that does not read
its answer. Once there are as many connections as `limit_concurrency` allows, a new one replaces the one that has sent
no complete request for longest. If all others are being answered, that is itself.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import resource
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from curate.core.errors import CurateError
from curate.service.app import create_app
from curate.service.service import Service

REQUEST_SECONDS = 30.0
"""From the first byte of a request, or from the connection, to the last byte of its body."""
ANSWER_SECONDS = 60.0
"""A client that takes nothing of its answer for so long is dropped."""
OTHER_FILES = 256
"""Open files of a process that are not connections of clients."""
GRACE_SECONDS = 3
"""For requests under way; event streams are cut, and their clients come back."""


def listening(host: str, port: int) -> socket.socket:
    """A socket that accepts connections. Raises CurateError, for example if the port is in use."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.create_server((host, port), family=family, backlog=1024)
        # connections inherit it; without it, the body of an answer waits 40 ms for the client's delayed acknowledgement
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CurateError(f"port {port}: another program listens on {host}:{port}; choose another port") from None
        text = error.strerror or str(error)
        raise CurateError(f"{host}:{port}: cannot listen there ({text}); choose another host or port") from None


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def configured(service: Service, app: FastAPI, **options: Any) -> uvicorn.Config:
    """How the application is served."""
    about: dict[str, Any] = {
        "http": Protocol,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,  # the application knows which proxies to believe
        "lifespan": "on",
        "ws": "none",
        "timeout_graceful_shutdown": GRACE_SECONDS,
        "limit_concurrency": _connections(service.settings.limits.connections) + 1,
    }
    return uvicorn.Config(app, **about | options)


def _connections(most: int) -> int:
    """Connections that this process can hold beside its other files, after raising its limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > soft:
        wanted = most + OTHER_FILES
        soft = max(soft, wanted if hard == resource.RLIM_INFINITY else min(wanted, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(most, max(1, soft - OTHER_FILES))


class Server(uvicorn.Server):
    """Calls `started` once requests are answered."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # modules and tables: a collection would go through all of them, in the middle of a request
        if not self.should_exit:
            self._announce()


def serve(service: Service, bound: socket.socket, started: Callable[[], None], **options: Any) -> None:
    """Serve until a signal. `started` is called once requests are answered. Raises CurateError if it cannot start.

    uvicorn raises a signal again after it has shut down, so that it must lead here and not end the process.
    """
    signals: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        signals.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    server = Server(configured(service, create_app(service), **options), started)
    try:
        server.run(sockets=[bound])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        bound.close()
    if not server.started:
        raise CurateError("the service did not start; its log says why")


# --- slow clients -----------------------------------------------------------------------------------------------------


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
