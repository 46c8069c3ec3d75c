"""The run's limiter: a server in the driver that deals the limits of a run to its workers.

with Limiter("127.0.0.1") as limiter:
    limiter.address                             # what a worker needs: host, port, key
    limiter.set(requests_per_second=100.0)      # at any time, from any thread
    limiter.set(max_tokens=1e6)                 # of all requests to endpoints
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, Self

from curate.core.shares import ENDPOINTS, MESSAGE_BYTES, messages_over
from curate.core.spend import Spend
from curate.engine.workers.shares import Dealer


class Limiter:
    """host: an address of this machine that the workers reach. dealer: replaced in tests.

    Each client has a thread, which mostly waits. A stranger without the key gets no further than a challenge."""

    def __init__(self, host: str, dealer: Dealer | None = None) -> None:
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._dealer = dealer or Dealer()
        self._on_over: Callable[[], object] | None = None
        self._open: dict[threading.Thread, socket.socket] = {}
        self._closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self._thread = threading.Thread(target=self._accept, name="limiter", daemon=True)
        self._thread.start()

    @property
    def address(self) -> dict[str, Any]:
        """Host, port and key, as `curate.core.shares.ShareClient` takes them; the key is a secret of the run."""
        host, port = self._listener.getsockname()[:2]
        return {"host": host, "port": port, "key": self._key.hex()}

    def set(self, room: str | None = None, **limits: float | None) -> None:
        """Change limits, now and for workers to come, in one room or in every one. None: no limit. Workers apply it
        with their next exchange, so within a second."""
        with self._lock:
            self._dealer.set(room, **limits)

    def on_over(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, in any thread, when a worker has a request for which a ceiling is not enough."""
        with self._lock:
            self._on_over = callback

    def spent(self) -> dict[str, Spend]:
        """By endpoint, as far as workers have reported it."""
        with self._lock:
            return {room.removeprefix(ENDPOINTS): spent for room, spent in self._dealer.spent().items()}

    def close(self) -> None:
        """End all connections: the clients then raise LimiterGoneError."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # close alone would leave accept() waiting
        self._listener.close()
        self._thread.join()
        with self._lock:
            clients = dict(self._open)
        for thread, connected in clients.items():
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.1)  # out of file descriptors, or the client left at once
                continue
            thread = threading.Thread(target=self._talk, args=(connected,), name="limiter client", daemon=True)
            with self._lock:
                self._open[thread] = connected
            thread.start()

    def _talk(self, connected: socket.socket) -> None:
        try:
            with connected, messages_over(connected.dup()) as connection:
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                self._serve(connection)
        except (OSError, EOFError, AuthenticationError):
            pass  # the client has left, was silent for too long, or has not the key
        finally:
            with self._lock:
                del self._open[threading.current_thread()]

    def _serve(self, connection: Connection) -> None:
        opening = json.loads(connection.recv_bytes(MESSAGE_BYTES))
        with self._lock:
            client, number = self._dealer.join(opening, time.monotonic())
        try:
            connection.send_bytes(b"{}")
            while True:
                message = json.loads(connection.recv_bytes(MESSAGE_BYTES))
                with self._lock:
                    answer = self._dealer.exchange(client, message, time.monotonic())
                    callback = self._on_over if answer["over"] else None
                    self._on_over = None if callback else self._on_over
                connection.send_bytes(json.dumps(answer).encode())
                if callback is not None:
                    callback()
        finally:
            with self._lock:
                self._dealer.leave(client, number, time.monotonic())
