"""The shares that a run's workers hold of its limits: requests per second, requests at once to a host, tokens, dollars.

The driver owns each limit and deals shares of it (curate/engine/workers/shares.py). A client asks for a share, holds it
for a time and gives it back. This file imports the standard library only, because a client also runs in environments
that have nothing else.

The first message of a client is {"client": a random name, "room": the stage or endpoint, "limits": LIMIT -> its
description}. A description has the `limit`, null for none. Where only a number of clients may hold a share at once, it
also has that number, `seats`, and `pause`, the seconds that the dealer lets pass after a client is gone. The entry
`host` describes all limits `host/NAME`.

All later messages are of one kind. They are JSON objects with
    busy      whether the client has anything to do
    asks      LIMIT -> {"holds": the most that the client may use until the answer, "needs": how much more it could
              use}. For a limit with seats also `wait`, the seconds during which no client should use it. For a ceiling
              also `used`, the part of `holds` that is spent, and `least`, the smallest share that the client can use
    spent     what the client's requests cost so far, and
    lost      what its requests in flight will have cost if this is its last message; both are curate.core.spend.Spend
The answer to each has
    shares    LIMIT -> [how much the client may use, null: any amount; after how many seconds it gives the share back,
              null: not yet known; the seconds during which no client should use the limit]
    over      whether a ceiling is used up
    seconds   until the next message of a busy client
Both mention a limit only if something about it has changed. The dealer divides rates and seats into equal shares, so
`needs` is 0 or any other number there. A client gives a share back by `needs` 0; `holds` is then what it still uses.

A share is valid until VALID_SECONDS after the start of the last exchange, and ends with the connection.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, Self

STAGES, ENDPOINTS = "stages/", "endpoints/"
"""Rooms are named by these and the name of a stage or of an endpoint."""
VALID_SECONDS = 15.0
"""A client that has not heard from the limiter for so long starts no request."""
SILENT_SECONDS = 40.0
"""A client that the limiter has not heard for so long has lost what it held; a limiter that does not answer is gone."""
MESSAGE_BYTES = 64 * 2**20
HURRY = 0.2
"""Share of the usual time between two messages after which the next may follow if something waits for it."""
IDLE_SECONDS = 1.0
"""Between two messages of a client that has nothing to do."""
RETRY_SECONDS = 0.5
CLOSE_SECONDS = 2.0


class LimiterGoneError(Exception):
    """The limiter does not answer: its driver has ended, so the client ends too."""


def messages_over(connected: socket.socket) -> Connection:
    """Messages over a connected socket, which it takes over. A peer that is silent for SILENT_SECONDS is an OSError."""
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(SILENT_SECONDS), 0))
    return Connection(connected.detach())


class LimiterConnection:
    """Connection to the run's limiter, for one thread. Raises LimiterGoneError.

    limiter: its `host`, `port` and `key` (hexadecimal). opening: the first message."""

    def __init__(self, limiter: Mapping[str, Any], opening: Mapping[str, Any]) -> None:
        self._name = f"{limiter['host']}:{limiter['port']}"
        key = bytes.fromhex(limiter["key"])
        try:
            connected = socket.create_connection((limiter["host"], limiter["port"]), timeout=SILENT_SECONDS)
            self._connection = messages_over(connected)
            answer_challenge(self._connection, key)
            deliver_challenge(self._connection, key)
        except (OSError, EOFError, AuthenticationError) as error:
            raise self._gone(error) from error
        self.exchange(opening)

    def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            self._connection.send_bytes(json.dumps(message).encode())
            return json.loads(self._connection.recv_bytes(MESSAGE_BYTES))
        except (OSError, EOFError, ValueError) as error:
            raise self._gone(error) from error

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gone(self, error: Exception) -> LimiterGoneError:
        return LimiterGoneError(
            f"the run's limiter at {self._name} does not answer ({type(error).__name__}: {error}); "
            f"the driver has probably ended: start the run again"
        )


class ShareClient:
    """A thread that keeps the shares of a process up to date.

    room, limits: see the top of the file. ask: makes the next message. heard: takes an answer over; without an answer,
    nothing may begin any more: see `valid` and `error`. Both are called in the thread. retry_seconds: how long a lost
    connection is tried again."""

    def __init__(
        self,
        limiter: Mapping[str, Any],
        room: str,
        limits: Mapping[str, Any],
        ask: Callable[[], dict[str, Any]],
        heard: Callable[[dict[str, Any] | None], object],
        retry_seconds: float = 0.0,
    ) -> None:
        self._limiter, self._ask, self._heard, self._retry_seconds = limiter, ask, heard, retry_seconds
        self.opening = {"client": secrets.token_hex(8), "room": room, "limits": limits}
        self.valid = 0.0
        """Nothing may begin after this time."""
        self.error: Exception | None = None
        """Why nothing may begin any more: the limiter is gone."""
        self.ready = threading.Event()
        """It has heard from the limiter, or found it gone."""
        self._hurry, self._closed = threading.Event(), False
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Connect, if there is no connection."""
        if not self.alive:
            self._closed, self.error = False, None
            self._thread = threading.Thread(target=self._run, daemon=True, name="shares")
            self._thread.start()

    def hurry(self) -> None:
        """Send the next message soon."""
        self._hurry.set()

    def close(self) -> None:
        """End the connection after one more message, without waiting for it."""
        self._closed = True
        self._hurry.set()

    def join(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until the connection that was closed has ended."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        failing: float | None = None
        ended = False
        while not ended:
            try:
                with LimiterConnection(self._limiter, self.opening) as connection:
                    failing = None
                    while not ended:
                        ended = self._closed
                        self._exchange(connection)
            except LimiterGoneError as error:
                failing = failing or time.monotonic()
                if self._closed or time.monotonic() - failing >= self._retry_seconds:
                    self.error, ended = error, True
            except Exception as error:  # noqa: BLE001 - after a bug, too, others would wait for this thread forever
                self.error, ended = error, True
            self.valid = 0.0
            self._heard(None)
            self.ready.set()
            if not ended:
                self._hurry.clear()
                self._hurry.wait(RETRY_SECONDS)

    def _exchange(self, connection: LimiterConnection) -> None:
        self._hurry.clear()
        began = time.monotonic()
        message = self._ask()
        answer = connection.exchange(message)
        self.valid = began + VALID_SECONDS
        self._heard(answer)
        self.ready.set()
        if not self._closed:
            least = HURRY * answer["seconds"]
            time.sleep(least)
            self._hurry.wait(answer["seconds"] - least if message["busy"] else IDLE_SECONDS)
