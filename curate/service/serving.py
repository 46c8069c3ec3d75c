"""Serves the application on a socket, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import errno
import gc
import resource
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from curate.core.errors import CurateError
from curate.service.app import create_app
from curate.service.protocol import Protocol
from curate.service.service import Service

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
