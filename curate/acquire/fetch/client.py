"""One request and its answer, on an idle connection where there is one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse

from curate.acquire.fetch import body
from curate.acquire.fetch.codes import PASSING_HTTP, Failure, http_code
from curate.acquire.fetch.connect import Connector
from curate.acquire.fetch.connection import HEAD_BYTES, Connection, explain
from curate.acquire.fetch.idle import Idle, Place
from curate.acquire.fetch.settings import FetchSettings
from curate.acquire.fetch.target import Target

REDIRECTS = frozenset({301, 302, 303, 307, 308})
DRAINED_BYTES = 64 * 1024
DRAIN_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 86_400.0

Move = Callable[[str, float], bool]
"""(host, seconds): one more request, to this host; waits up to `seconds` until it may be sent. False: it may not. The
first request of a URL, to `Fetcher.first_host`, needs no call: who starts the fetch has counted it."""


class Trip:
    """One URL's way: what is left of its time, and what it has cost."""

    def __init__(self, deadline_seconds: float, move: Move | None = None) -> None:
        self._move = move
        self._requests = 0
        self._waited = 0.0
        self._began = time.monotonic()
        self.end = self._began + deadline_seconds
        self.host = ""
        self.tries = 0
        self.bytes = 0

    def left(self) -> float:
        return self.end - time.monotonic()

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


@dataclass(frozen=True, slots=True)
class Answer:
    """A success with its body, a redirect with its location, or a failure."""

    headers: Message
    data: bytes = b""
    location: str = ""
    failure: Failure | None = None


class Client:
    def __init__(self, settings: FetchSettings, connector: Connector) -> None:
        """Raises ValueError for a user agent that a header cannot have."""
        if any(not " " <= character <= "~" for character in settings.agent):
            raise ValueError(f"user_agent: {settings.agent!r} is not plain ASCII in one line; remove other characters")
        self._connector = connector
        per_place = settings.thread_count if connector.proxy else settings.host_connections
        self._idle = Idle(2 * settings.thread_count, per_place)
        self._tail = f"\r\nUser-Agent: {settings.agent}\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"

    def ask(self, target: Target, trip: Trip, want: Want) -> Answer:
        """Raises Failure without an answer, or if the answer is not what `want` describes."""
        place, request = self._request(target)
        used = self._idle.take(place)
        if used:
            try:
                return self._exchange(used, place, request, trip, want, self._idle.patience(place))
            except Failure as failure:
                if failure.code not in ("reset", "headers"):
                    raise
            if used.wire.received:  # otherwise the host had just closed the idle connection
                trip.take_turn(target.host)
        return self._exchange(self._connector.connect(target, trip.end), place, request, trip, want)

    def close(self) -> None:
        self._idle.close()

    def _request(self, target: Target) -> tuple[Place, bytes]:
        """Where the request goes, and its bytes. A proxy is asked for the whole URL, unless it makes a tunnel."""
        proxy = self._connector.proxy
        if proxy is None or target.scheme == "https":
            head = f"GET {target.path} HTTP/1.1\r\nHost: {target.authority}{self._tail}\r\n"
            return (target.scheme, target.host, target.port), head.encode()
        head = f"GET {target.url} HTTP/1.1\r\nHost: {target.authority}{self._tail}"
        return ("proxy", proxy.host, proxy.port), head.encode() + proxy.header + b"\r\n"

    def _exchange(
        self, connection: Connection, place: Place, request: bytes, trip: Trip, want: Want, patience: float = 0.0
    ) -> Answer:
        """patience: seconds in which nothing may follow the response. A connection that was used before may bring one
        that the host sent unasked: then that of this request follows."""
        keep = False
        try:
            response = connection.ask(request, trip.end)
            answer = self._read(connection, response, want)
            whole = response.isclosed()  # read to its end
            if patience and whole and not self._idle.learn(place, quiet=not connection.speaks(patience)):
                raise Failure("reset", "a response follows the response")
            keep = whole and not response.will_close
            return answer
        except (OSError, HTTPException, ValueError) as error:
            raise explain(error) from error
        finally:
            trip.bytes += connection.wire.received
            if keep:
                self._idle.put(place, connection)
            else:
                connection.close()

    def _read(self, connection: Connection, response: HTTPResponse, want: Want) -> Answer:
        headers = response.headers
        lengths = {part.strip() for line in headers.get_all("Content-Length", ()) for part in line.split(",")}
        if len(lengths) > 1:  # http.client takes the first
            raise Failure("headers", f"{len(lengths)} different lengths are announced")
        for length in lengths:  # http.client takes what is not a number for none, and the end for the body's
            if not (length.isascii() and length.isdigit()):
                raise Failure("headers", f"Content-Length: {length[:80]!r} is not a number of bytes")
        if 200 <= response.status < 300 and response.status != 206:  # 206 is a part, though a whole was requested
            want.inspect(headers)
            connection.wire.allow(2 * want.max_bytes + HEAD_BYTES)  # chunks have headers, and may have trailers
            return Answer(headers, body.read(response, want.max_bytes, want.cut))
        _drain(connection, response)
        location = headers.get("Location", "")
        if response.status in REDIRECTS and location:
            return Answer(headers, location=location)
        return Answer(headers, failure=Failure(http_code(response.status), "", wait_seconds(response)))


def _drain(connection: Connection, response: HTTPResponse) -> None:
    """Read the body of a redirect or an error, so that its connection can be used again; whatever it is, the status
    counts. A long or slow body costs more than another connection."""
    if response.length is None or response.length > DRAINED_BYTES:
        return
    connection.wire.end = min(connection.wire.end, time.monotonic() + DRAIN_SECONDS)
    with suppress(Failure, OSError, HTTPException, ValueError):
        response.read()


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
