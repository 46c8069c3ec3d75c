"""The run's limiter: a server in the driver that deals the limits of a run to its workers.

with Limiter("127.0.0.1") as limiter:
    limiter.address                             # what a worker needs: host, port, key
    limiter.set(requests_per_second=100.0)      # at any time, from any thread
    limiter.set_budget(tokens=1e6)              # of all requests to endpoints
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, Self

from curate.core.limits import MESSAGE_BYTES, EndpointLimits, LimitSettings, messages_over
from curate.core.spend import Spend
from curate.engine.workers.budget import Budget, EndpointRoom
from curate.engine.workers.shares import Room

KEEP: Any = object()
"""Leave a limit as it is."""


class Limiter:
    """host: an address of this machine that the workers reach. make_room: state of a stage, from its settings.

    Each client has a thread, which mostly waits. A stranger without the key gets no further than a challenge."""

    def __init__(self, host: str, make_room: Callable[[LimitSettings], Room] = Room) -> None:
        self._key = secrets.token_bytes(32)
        self._make_room = make_room
        self._lock = threading.Lock()
        self._rooms: dict[str, Room] = {}
        self._set: dict[str | None, dict[str, float | None]] = {}
        """Room (None: every room) -> limits that were changed."""
        self._budget = Budget()
        self._set_endpoints: dict[str, dict[str, float | None]] = {}
        """Endpoint -> limits that were changed."""
        self._on_over: Callable[[str], object] | None = None
        self._open: dict[threading.Thread, socket.socket] = {}
        self._closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self._thread = threading.Thread(target=self._accept, name="limiter", daemon=True)
        self._thread.start()

    @property
    def address(self) -> dict[str, Any]:
        """Host, port and key, as `curate.core.limits.Limits` takes them; the key is a secret of the run."""
        host, port = self._listener.getsockname()[:2]
        return {"host": host, "port": port, "key": self._key.hex()}

    def set(
        self,
        room: str | None = None,
        *,
        requests_per_second: float | None = KEEP,
        bytes_per_second: float | None = KEEP,
    ) -> None:
        """Change the limits of a stage (None: of each), now and for its workers to come. None: no limit. Workers apply
        it with their next exchange, so within a second."""
        given = {"requests_per_second": requests_per_second, "bytes_per_second": bytes_per_second}
        changed = {name: value for name, value in given.items() if value is not KEEP}
        with self._lock:
            for name in list(self._set) if room is None else []:
                self._set[name].update(changed)
            self._set.setdefault(room, dict(self._set.get(None, {}))).update(changed)
            for name, one in self._rooms.items():
                if room in (None, name):
                    one.set(**changed)

    # --- endpoints ---

    def set_endpoint(
        self, name: str, *, requests_per_minute: float | None = KEEP, tokens_per_minute: float | None = KEEP
    ) -> None:
        """Change the limits of an endpoint, now and for its workers to come. None: no limit."""
        given = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
        changed = {limit: value for limit, value in given.items() if value is not KEEP}
        with self._lock:
            self._set_endpoints.setdefault(name, {}).update(changed)
            if name in self._budget.rooms:
                self._budget.rooms[name].set(**changed)

    def set_budget(self, tokens: float | None = None, dollars: float | None = None) -> None:
        """What the run may spend at endpoints, from its beginning. None: no ceiling."""
        with self._lock:
            self._budget.tokens, self._budget.dollars = tokens, dollars

    def on_over(self, callback: Callable[[str], object]) -> None:
        """Call `callback` once, in any thread, when a worker has a request for which the budget is not enough. It gets
        one line: what was spent of what."""
        with self._lock:
            self._on_over = callback

    def spent(self) -> dict[str, Spend]:
        """By endpoint, as far as workers have reported it."""
        with self._lock:
            return {name: room.spent() for name, room in self._budget.rooms.items()}

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
        hello = json.loads(connection.recv_bytes(MESSAGE_BYTES))
        room: Room | EndpointRoom
        with self._lock:
            if hello["of"] == "endpoint":
                room = self._endpoint(hello["room"], EndpointLimits(**hello["settings"]))
            else:
                room = self._room(hello["room"], LimitSettings.of(hello["settings"]))
            client = room.join()
        try:
            connection.send_bytes(b"{}")
            while True:
                message = json.loads(connection.recv_bytes(MESSAGE_BYTES))
                with self._lock:
                    answer = room.exchange(client, message, time.monotonic())
                    callback = self._on_over if answer.get("over") else None
                    self._on_over = None if callback else self._on_over
                connection.send_bytes(json.dumps(answer).encode())
                if callback is not None:
                    callback(answer["over"])
        finally:
            with self._lock:
                room.leave(client, time.monotonic())

    def _endpoint(self, name: str, limits: EndpointLimits) -> EndpointRoom:
        rooms = self._budget.rooms
        if name not in rooms:
            rooms[name] = EndpointRoom(replace(limits, **self._set_endpoints.get(name, {})), self._budget)
        return rooms[name]

    def _room(self, name: str, settings: LimitSettings) -> Room:
        if name not in self._rooms:
            changed = self._set.get(name) or self._set.get(None, {})
            self._rooms[name] = self._make_room(replace(settings, **changed))  # type: ignore[arg-type]
        return self._rooms[name]
