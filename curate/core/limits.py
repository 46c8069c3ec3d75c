"""A process's side of the run's limiter: how many requests it may make, to each host and in all.

The limiter is a thread of the driver (curate/engine/workers/limiter.py). Only the standard library is imported here,
because the client runs in environments that have nothing else.

A client sends the limits of its stage once. Then it sends messages, JSON objects, and each is answered. They say
    busy   whether it has anything to request
    want   hosts for which it has requests
    left   host -> seconds until the next request may start there: hosts that it gives back, with nothing in progress
    held   host -> [requests in progress, seconds]: hosts whose limit was lowered
    park   host -> seconds for which the host asked to be left alone
and the answers:
    grant  host -> [requests at once, requests per second or null, seconds until the first]; 0 at once: give it back
    park   host -> seconds, as other clients reported them
    requests, bytes   per second, its part of the run's limits, or null
    seconds           until its next message
What is granted holds until the client confirms a lower limit, and for VALID_SECONDS after its last exchange began.

A client of an endpoint says instead
    busy      whether it has anything to request
    started, settled   requests so far: begun, and ended
    ceiling   how many it holds itself to beginning in all: what it does not need is given back by lowering this
    want      how many more it would begin now
    guess     [tokens in, tokens out], the most of its requests so far
    spent     what the settled ones cost: the counts of curate.core.spend
and is answered
    requests, tokens   per second, its part of the endpoint's limits, or null
    ceiling   how many requests it may begin in all; null: the run has no budget
    over      why no further request may begin in this run; "" if it may
    seconds   until its next message
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, Self

VALID_SECONDS = 15.0
"""A client that has not heard from the limiter for so long starts no request."""
SILENT_SECONDS = 40.0
"""A client that the limiter has not heard for so long has lost what it held; a limiter that does not answer is gone."""
MESSAGE_BYTES = 64 * 2**20


class LimiterGoneError(Exception):
    """The limiter does not answer: its driver has ended, so the runner ends too."""


@dataclass(frozen=True)
class LimitSettings:
    """Limits of a stage, over all workers of a run. None: no limit."""

    host_connections: int = 4
    """Requests at once to one host."""
    host_rate: float | None = None
    """Requests per second to one host."""
    requests_per_second: float | None = None
    bytes_per_second: float | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> LimitSettings:
        """These settings among others."""
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})


@dataclass(frozen=True)
class EndpointLimits:
    """Limits of an endpoint, over all workers of a run, and its price. None: no limit, no price."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    input: float | None = None
    """Dollars per million tokens."""
    output: float | None = None


def messages_over(connected: socket.socket) -> Connection:
    """Messages over a connected socket, which it takes over. A peer that is silent for SILENT_SECONDS is an OSError."""
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(SILENT_SECONDS), 0))
    return Connection(connected.detach())


class Limits:
    """Connection to a limiter, for one thread. Raises LimiterGoneError.

    limiter: its `host`, `port` and `key` (hexadecimal), and a `room`: the name of the stage, or of the endpoint, whose
    clients share its limits."""

    def __init__(self, limiter: Mapping[str, Any], settings: LimitSettings | EndpointLimits) -> None:
        self._name = f"{limiter['host']}:{limiter['port']}"
        key = bytes.fromhex(limiter["key"])
        try:
            connected = socket.create_connection((limiter["host"], limiter["port"]), timeout=SILENT_SECONDS)
            self._connection = messages_over(connected)
            answer_challenge(self._connection, key)
            deliver_challenge(self._connection, key)
        except (OSError, EOFError, AuthenticationError) as error:
            raise self._gone(error) from error
        of = "endpoint" if isinstance(settings, EndpointLimits) else "stage"
        self.exchange({"room": limiter["room"], "of": of, "settings": asdict(settings)})

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
