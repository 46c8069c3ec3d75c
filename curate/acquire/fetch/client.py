"""One request and its answer, each on a separate connection.

A host may send a response unasked. On a connection that is used again, that response would be taken for
the answer to the next URL, and no timing tells the two apart. So no connection is used again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse
from typing import Protocol

from curate.acquire.fetch import body
from curate.acquire.fetch.codes import PASSING_HTTP, Failure, http_code
from curate.acquire.fetch.connect import Connector
from curate.acquire.fetch.connection import HEAD_BYTES, Connection, explain, lengths_of
from curate.acquire.fetch.settings import FetchSettings
from curate.acquire.fetch.target import Target
from curate.codec.formats import SNIFF_BYTES

REDIRECTS = frozenset({301, 302, 303, 307, 308})
LONGEST_WAIT_SECONDS = 86_400.0

Move = Callable[[str, float], bool]
"""(host, seconds): one more request, to this host; waits up to `seconds` until it may be sent. False: it may not. The
first request of a URL, to `Fetcher.first_host`, needs no call: who starts the fetch has counted it."""


class Sink(Protocol):
    """What a large body is written to while it comes. `head` has its first bytes; `clear` removes what was written."""

    head: bytes

    def write(self, data: bytes) -> None: ...

    def digest(self, name: str) -> str: ...

    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Large:
    """Bodies that are written to the trip's sink, and their limits."""

    max_bytes: int
    deadline_seconds: float
    """Limit for the whole trip."""
    is_large: Callable[[bytes, Message], bool]
    """Called with the first bytes and the header; may raise Failure before more is read."""


class Trip:
    """One URL's way: what is left of its time, and what it has cost."""

    def __init__(self, deadline_seconds: float, move: Move | None = None, sink: Sink | None = None) -> None:
        self._move = move
        self.sink = sink
        self._requests = 0
        self._waited = 0.0
        self._began = time.monotonic()
        self.end = self._began + deadline_seconds
        self.host = ""
        self.tries = 0
        self.bytes = 0

    def left(self) -> float:
        return self.end - time.monotonic()

    def extend(self, deadline_seconds: float) -> None:
        self.end = max(self.end, self._began + deadline_seconds)

    def take_turn(self, host: str) -> None:
        """Before each request. Raises Failure: deadline, if the host's turn does not come in time."""
        self.host = host
        if self._requests and self._move:
            with self.pausing():
                if not self._move(host, max(0.0, self.left())):
                    raise Failure("deadline", f"{host} is busy, or asks for a pause")
        self._requests += 1

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """What passes in here is politeness, not slowness."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._waited += time.monotonic() - began

    def seconds(self) -> float:
        """Spent by now, without pauses."""
        return time.monotonic() - self._began - self._waited


@dataclass(frozen=True, slots=True)
class Want:
    """What is expected of an answer."""

    max_bytes: int
    cut: bool
    """Whether a body that is longer is cut, instead of being a failure."""
    inspect: Callable[[Message], None]
    """Called with the header of a success; may raise Failure before the body is read."""
    large: Large | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A success with its body, a redirect with its location, or a failure."""

    headers: Message
    data: bytes = b""
    """Empty if the body was written to the trip's sink."""
    stored: bool = False
    """Whether it was."""
    location: str = ""
    failure: Failure | None = None


class HttpClient:
    def __init__(self, settings: FetchSettings, connector: Connector) -> None:
        """Raises ValueError for a user agent that a header cannot have."""
        if any(not " " <= character <= "~" for character in settings.agent):
            raise ValueError(f"user_agent: {settings.agent!r} is not plain ASCII in one line; remove other characters")
        self._connector = connector
        self._tail = (
            f"\r\nUser-Agent: {settings.agent}\r\nAccept: */*\r\nAccept-Encoding: identity\r\nConnection: close\r\n"
        )

    def ask(self, target: Target, trip: Trip, want: Want) -> Answer:
        """Raises Failure without an answer, or if the answer is not what `want` describes."""
        connection = self._connector.connect(target, trip.end)
        try:
            return self._read(connection, connection.ask(self._request(target), trip.end), want, trip)
        except (OSError, HTTPException, ValueError) as error:
            raise explain(error) from error
        finally:
            trip.bytes += connection.wire.received
            connection.close()

    def _request(self, target: Target) -> bytes:
        """A proxy is asked for the whole URL, unless it makes a tunnel."""
        proxy = self._connector.proxy
        if proxy is None or target.scheme == "https":
            return f"GET {target.path} HTTP/1.1\r\nHost: {target.authority}{self._tail}\r\n".encode()
        head = f"GET {target.url} HTTP/1.1\r\nHost: {target.authority}{self._tail}"
        return head.encode() + proxy.header + b"\r\n"

    def _read(self, connection: Connection, response: HTTPResponse, want: Want, trip: Trip) -> Answer:
        headers = response.headers
        lengths = lengths_of(headers)
        if len(lengths) > 1:
            raise Failure("headers", f"{len(lengths)} different lengths are announced")
        for length in lengths:
            if not (length.isascii() and length.isdigit()):
                raise Failure("headers", f"Content-Length: {length[:80]!r} is not a number of bytes")
        if 200 <= response.status < 300 and response.status != 206:  # 206 is a part, though a whole was requested
            want.inspect(headers)
            connection.wire.allow(2 * want.max_bytes + HEAD_BYTES)  # chunks have headers, and may have trailers
            head = body.read_head(response, SNIFF_BYTES) if want.large else b""
            if want.large and trip.sink and want.large.is_large(head, headers):
                _write(connection, response, head, want.large, trip, trip.sink)
                return Answer(headers, stored=True)
            return Answer(headers, body.read(response, want.max_bytes, want.cut, head))
        location = headers.get("Location", "")
        if response.status in REDIRECTS and location:
            return Answer(headers, location=location)
        return Answer(headers, failure=Failure(http_code(response.status), "", wait_seconds(response)))


def _write(connection: Connection, response: HTTPResponse, head: bytes, large: Large, trip: Trip, sink: Sink) -> None:
    """Write the body to the sink while it comes."""
    trip.extend(large.deadline_seconds)
    connection.wire.end = trip.end
    connection.wire.allow(2 * large.max_bytes + HEAD_BYTES)
    for piece in body.pieces(response, large.max_bytes, head=head):
        sink.write(piece)


def wait_seconds(response: HTTPResponse) -> float | None:
    """What Retry-After asks for, in seconds or until a date, which is compared with the host's own clock."""
    value = response.headers.get("Retry-After", "").strip()
    if not value or response.status not in PASSING_HTTP:
        return None
    if value.isascii() and value.isdigit():
        return min(float(value[:9]), LONGEST_WAIT_SECONDS)
    until, now = _moment(value), _moment(response.headers.get("Date", ""))
    if until is None:
        return None
    return min(max(until - (time.time() if now is None else now), 0.0), LONGEST_WAIT_SECONDS)


def _moment(date: str) -> float | None:
    """An HTTP date, in seconds since 1970. One without a zone is in GMT, as all of them are."""
    try:
        found = parsedate_to_datetime(date)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
