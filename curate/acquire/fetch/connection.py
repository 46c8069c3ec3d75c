"""One connection, and what is read from it in time.

http.client parses responses; the socket below is ours, because two things have to hold for every byte: no wait outlasts
the fetch's deadline (a body that drips, a handshake that hangs), and no response has more bytes than allowed.
"""

from __future__ import annotations

import io
import re
import socket
import ssl
import time
from collections.abc import Iterable
from email.message import Message
from http import client
from http.client import HTTPException, HTTPMessage, HTTPResponse, IncompleteRead, UnknownProtocol
from typing import Any, cast

from curate.acquire.fetch.codes import Failure

_NAME = re.compile(r"[!-9;-~]+")
HEAD_BYTES = 256 * 1024
BUFFER_BYTES = 64 * 1024


class Wire(io.RawIOBase):
    """Bytes of a socket, until `end` (on the monotonic clock) and up to a number of bytes."""

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self.sock = sock
        self.timeout = timeout
        self.end = 0.0
        self.received = 0
        """Bytes since the request."""
        self.ended = False
        """Whether the other side has closed the connection."""
        self._limit = 0
        self._wait: float | None = None
        """Time-out of the socket, as far as it is known; 0 during `look`, which does not raise."""

    def begin(self, end: float) -> None:
        """A new request: its response ends by `end`."""
        self.end = end
        self.received = 0
        self._wait = None
        self.allow(HEAD_BYTES + BUFFER_BYTES)

    def allow(self, more_bytes: int) -> None:
        """Read at most `more_bytes` from now on. The limit of a body is lower, so what exceeds this one is
        header."""
        self._limit = self.received + more_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._wait != 0:
            self._arm()
        try:
            count = self.sock.recv_into(buffer)
        except (BlockingIOError, ssl.SSLWantReadError, TimeoutError):
            if self._wait == 0:
                return None
            raise late(self.end, self.timeout) from None
        self.ended = count == 0
        self.received += count
        if self.received > self._limit:
            raise Failure("headers", f"more than {self._limit} bytes came")
        return count

    def send(self, data: bytes) -> None:
        self._arm()
        try:
            self.sock.sendall(data)
        except TimeoutError:
            raise late(self.end, self.timeout) from None

    def _arm(self) -> None:
        """Let the next wait end at the deadline, or after `timeout`."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise Failure("deadline")
        wait = min(self.timeout, left)
        if wait != self._wait:
            self.sock.settimeout(wait)
            self._wait = wait

    def look(self, reader: io.BufferedReader) -> bool:
        """Whether `reader`, the buffer of this wire, has bytes now; `ended`: whether more may come."""
        self.sock.settimeout(0)
        self._wait = 0
        try:
            return bool(reader.peek(1))
        except (OSError, Failure):
            self.ended = True
            return False


class Reader(io.BufferedReader):
    """Outlives a response with status 103, since http.client closes its file after each."""

    def close(self) -> None:
        pass


class Response(HTTPResponse):
    """http.client's, with another parser of the header: that of `email` takes as long as the rest of a fetch."""

    def begin(self) -> None:
        status = 100
        while status == 100:
            version, status, self.reason = self._read_status()  # type: ignore[attr-defined]
            self.headers = self.msg = _headers(client._read_headers(self.fp)[:-1])  # type: ignore[attr-defined]
        self.code = self.status = status
        if not version.startswith("HTTP/1."):
            raise UnknownProtocol(version)
        self.version = 10 if version == "HTTP/1.0" else 11
        self.chunked, self.chunk_left = self.headers.get("Transfer-Encoding", "").lower() == "chunked", None
        self.will_close = self._check_close()  # type: ignore[attr-defined]
        lengths = lengths_of(self.headers)
        length = min(lengths, default="")
        self.length = int(length) if len(lengths) == 1 and length.isdigit() and not self.chunked else None
        if status < 200 or status in (204, 304):
            self.length = 0
        elif self.length is None and not self.chunked:
            self.will_close = True


def lengths_of(headers: Message) -> set[str]:
    """What Content-Length says, in all lines and lists; more than one is a contradiction."""
    return {part.strip() for line in headers.get_all("Content-Length", ()) for part in line.split(",")}


def _headers(lines: Iterable[bytes]) -> HTTPMessage:
    """The payload is a line that is malformed (RFC 9112, 5); those that follow it are not read."""
    found: list[tuple[str, str]] = []
    message = HTTPMessage()
    for line in lines:
        text = line.decode("iso-8859-1").rstrip("\r\n")
        if text[:1] in (" ", "\t") and found:  # it continues the line before
            found[-1] = found[-1][0], f"{found[-1][1]} {text.strip()}"
            continue
        name, colon, value = text.partition(":")
        if not colon or "\r" in value or not _NAME.fullmatch(name):
            message.set_payload(text)
            break
        found.append((name, value.strip(" \t")))
    for name, value in found:
        message.set_raw(name, value)
    return message


class Connection:
    """A connected socket, with TLS where the scheme says so."""

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self.wire = Wire(sock, timeout)
        self._reader = Reader(self.wire, BUFFER_BYTES)

    def ask(self, request: bytes, end: float, method: str = "GET") -> HTTPResponse:
        """Send a request and read the response's header. Raises Failure."""
        self.wire.begin(end)
        try:
            self.wire.send(request)
            while True:
                response = Response(cast(socket.socket, self), method=method)
                response.begin()
                if not 102 <= response.status < 200:  # http.client skips 100 only; 101 was not asked for
                    break
        except (OSError, HTTPException, ValueError) as error:
            raise explain(error) from error
        if self.wire.ended:  # http.client takes the end of the stream for the end of the header
            raise Failure("reset", "the header is incomplete")
        if rest := response.headers.get_payload():  # the parser ignores a malformed line and all that follow
            raise Failure("headers", f"a line is malformed: {str(rest).splitlines()[0][:80]!r}")
        return response

    def is_quiet(self) -> bool:
        """Whether the connection is open and has nothing to read."""
        return not self.wire.look(self._reader) and not self.wire.ended

    def makefile(self, mode: str = "rb") -> Reader:
        """What http.client calls on its socket."""
        return self._reader

    def close(self) -> None:
        self.wire.sock.close()


def late(end: float, timeout: float) -> Failure:
    """Which limit a wait has reached."""
    if time.monotonic() >= end:
        return Failure("deadline")
    return Failure("timeout", f"silent for {timeout:g} s")


def explain(error: Exception) -> Failure:
    """The failure that an error of the socket, of TLS or of http.client amounts to."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    if isinstance(error, IncompleteRead):
        return Failure("truncated", text)
    if isinstance(error, TimeoutError):
        return Failure("timeout", text)
    if isinstance(error, (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return Failure("reset", text)
    if isinstance(error, ssl.SSLError):
        return Failure("tls", text)
    if isinstance(error, OSError):
        return Failure("reset", text)
    return Failure("headers", text)
