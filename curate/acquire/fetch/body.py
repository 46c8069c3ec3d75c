"""A response's body: read up to a limit, and decoded up to the same limit."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from http.client import HTTPResponse

from curate.acquire.fetch.codes import Failure

PIECE_BYTES = 2**20
"""Read at once: http.client allocates what it is asked for, and a server may announce anything."""
_DEFLATES = {"gzip", "x-gzip", "deflate"}
MOST_LAYERS = 3
"""Encodings of one body: each may take as long as the largest body."""
MOST_MEMBERS = 100
"""Members of a gzip stream: what follows a member is copied for each."""


def read(response: HTTPResponse, limit: int, cut: bool = False, head: bytes = b"") -> bytes:
    """The body, of at most `limit` bytes; what is longer is cut, or Failure too_large. Raises Failure: truncated.
    head: what has been read of it."""
    found = list(pieces(response, limit, cut, head))
    return (found[0] if len(found) == 1 else b"".join(found))[:limit]


def read_head(response: HTTPResponse, size: int) -> bytes:
    """The first bytes of the body. Raises Failure: truncated."""
    head = b""
    while len(head) < size and (piece := response.read(size - len(head))):
        head += piece
    if len(head) < size and response.length:
        raise Failure("truncated", f"{len(head)} of {len(head) + response.length} bytes")
    return head


def pieces(response: HTTPResponse, limit: int, cut: bool = False, head: bytes = b"") -> Iterator[bytes]:
    """What `read` returns, while it comes; the last piece may exceed the limit by a byte."""
    announced = None if response.length is None else len(head) + response.length
    if announced is not None and announced > limit and not cut:
        raise Failure("too_large", f"{announced} bytes are announced; at most {limit} are allowed")
    size = len(head)
    if head:
        yield head
    while size <= limit:
        piece = response.read(min(PIECE_BYTES, limit + 1 - size))
        if not piece:
            break
        size += len(piece)
        yield piece
    if size > limit and not cut:
        raise Failure("too_large", f"more than {limit} bytes")
    if size <= limit and response.length:
        raise Failure("truncated", f"{size} of {announced} bytes")


def decode(data: bytes, encoding: str, limit: int) -> bytes:
    """Undo a Content-Encoding that was not asked for. Raises Failure: encoding, also for more than `limit` bytes."""
    names = [name for part in encoding.split(",") if (name := part.strip().lower()) not in ("", "identity")]
    if len(names) > MOST_LAYERS:
        raise Failure("encoding", f"{len(names)} encodings; at most {MOST_LAYERS} are undone")
    for name in reversed(names):
        if name not in _DEFLATES:
            raise Failure("encoding", f"{encoding[:80]!r} is not supported")
        data = _inflate(data, name, limit)
    return data


def _inflate(data: bytes, name: str, limit: int) -> bytes:
    """gzip with all its members, or deflate, which some servers send without zlib's frame (RFC 9110, 8.4.1.2)."""
    bits = 31 if name != "deflate" else 15 if _has_zlib_header(data) else -15
    pieces: list[bytes] = []
    room = limit + 1
    members = 0
    try:
        while data and room > 0:
            if (members := members + 1) > MOST_MEMBERS:
                raise Failure("encoding", f"{name}: more than {MOST_MEMBERS} members")
            inflater = zlib.decompressobj(bits)
            pieces.append(inflater.decompress(data, room))
            room -= len(pieces[-1])
            if room > 0 and not inflater.eof:
                raise Failure("encoding", f"the {name} stream ends too early")
            data = inflater.unused_data if name != "deflate" else b""
            if not data.startswith(b"\x1f\x8b"):
                break  # padding after the last member
    except zlib.error as error:
        raise Failure("encoding", f"{name}: {error}") from None
    if room <= 0:
        raise Failure("encoding", f"{name}: expands to more than {limit} bytes")
    return b"".join(pieces)


def _has_zlib_header(data: bytes) -> bool:
    """RFC 1950, 2.2: method 8, and a check value that makes the first two bytes a multiple of 31."""
    return len(data) >= 2 and data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
