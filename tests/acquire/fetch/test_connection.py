"""Any bytes, in any pieces, from a socket that needs no network."""

from __future__ import annotations

import io
import itertools
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from http.client import HTTPException, parse_headers
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.acquire.fetch import body, connection
from curate.acquire.fetch.codes import CODES, Failure
from curate.acquire.fetch.connection import Connection, explain
from tests.acquire.fetch.scripted import IMAGE, response


class Pieces:
    """A socket that returns these pieces and then the end of the stream. Exceptions among them are raised."""

    def __init__(self, pieces: Iterable[bytes | Exception]) -> None:
        self.pieces = list(pieces)
        self.timeouts: list[float] = []

    def recv_into(self, buffer: memoryview) -> int:
        while self.pieces and self.pieces[0] == b"":
            del self.pieces[0]
        if not self.pieces:
            return 0
        piece = self.pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        count = min(len(piece), len(buffer))
        buffer[:count] = piece[:count]
        if piece[count:]:
            self.pieces.insert(0, piece[count:])
        return count

    def settimeout(self, seconds: float) -> None:
        self.timeouts.append(seconds)

    def sendall(self, data: bytes) -> None:
        pass


def read(pieces: Iterable[bytes | Exception], limit: int = 1000) -> tuple[int, bytes, Connection]:
    made = Connection(cast(socket.socket, Pieces(pieces)), 5.0)
    try:
        answer = made.ask(b"GET / HTTP/1.1\r\n\r\n", time.monotonic() + 60)
        made.wire.allow(2 * limit + connection.HEAD_BYTES)
        return answer.status, body.read(answer, limit), made
    except (OSError, HTTPException, ValueError) as error:
        raise explain(error) from error


def code_of(pieces: Iterable[bytes | Exception]) -> str:
    try:
        read(pieces)
    except Failure as failure:
        return failure.code
    return "done"


def pieces_of(data: bytes, places: list[int]) -> list[bytes]:
    cuts = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:stop] for start, stop in itertools.pairwise(cuts)]


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
places = st.lists(st.integers(0, 10_000), max_size=20)


@given(places)
def test_pieces_do_not_matter(at: list[int]) -> None:
    assert read(pieces_of(response(), at))[1] == IMAGE
    assert read(pieces_of(CHUNKED, at))[1] == b"abcde"
    assert read(pieces_of(b"HTTP/1.0 200 OK\r\n\r\nabc", at))[1] == b"abc"


@given(st.sampled_from([response(), CHUNKED]), places, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255))))
def test_any_change_has_a_code(data: bytes, at: list[int], changes: list[tuple[int, int]]) -> None:
    changed = bytearray(data)
    for place, value in changes:
        changed[place % len(data)] = value
    assert code_of(pieces_of(bytes(changed), at)) in CODES


@given(st.binary(max_size=300) | st.binary(max_size=300).map(b"HTTP/1.1 200 OK\r\n%b".__mod__))
def test_any_bytes_have_a_code(data: bytes) -> None:
    assert code_of([data]) in CODES


@given(st.integers(0, len(response()) - 1))
def test_a_response_that_ends_early_is_never_taken_for_a_whole_one(end: int) -> None:
    assert code_of([response()[:end]]) in {"reset", "headers", "truncated"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionResetError("reset"), "reset"),
        (TimeoutError("timed out"), "timeout"),
        (OSError(5, "input/output error"), "reset"),
    ],
)
def test_errors_of_the_socket(error: Exception, code: str) -> None:
    assert code_of([response()[:-3], error]) == code


def test_each_wait_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sock = Pieces([b"H"] * 100)
    made = Connection(cast(socket.socket, sock), 5.0)
    receive = sock.recv_into

    def later(buffer: memoryview) -> int:
        now[0] += 2.0
        return receive(buffer)

    sock.recv_into = later  # type: ignore[method-assign]
    with pytest.raises(Failure, match="deadline"):
        made.ask(b"GET / HTTP/1.1\r\n\r\n", 112.0)
    assert sock.timeouts == [5.0, 4.0, 2.0]  # 12 s before the deadline: 5, then what is left


def test_a_connection_with_something_to_read_is_not_used_again() -> None:
    for surplus, quiet in (([b"HTTP/1.1"], False), ([], False), ([BlockingIOError()], True), ([OSError()], False)):
        _, data, made = read([response(), *surplus])
        assert data == IMAGE and made.is_quiet() is quiet
    _, data, made = read([response() + b"surplus"])
    assert data == IMAGE and not made.is_quiet()


@given(places, st.lists(st.sampled_from([b"100 Continue", b"102 Processing", b"103 Early Hints"]), max_size=4))
def test_an_interim_response_is_not_the_answer(at: list[int], interim: list[bytes]) -> None:
    data = b"".join(b"HTTP/1.1 %b\r\nLink: </a.css>\r\n\r\n" % status for status in interim)
    status, got, made = read([*pieces_of(data + response(), at), BlockingIOError()])
    assert (status, got, made.is_quiet()) == (200, IMAGE, True)


names = st.sampled_from(["X-Robots-Tag", "x-robots-tag", "TDM-Reservation", "Via", "A"])
values = st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f\x85\xa0"), max_size=9)


@given(st.lists(st.tuples(names, st.sampled_from(["", " ", "\t"]), values, st.sampled_from(["", "  "])), max_size=9))
def test_a_header_is_read_as_email_reads_it(lines: list[tuple[str, str, str, str]]) -> None:
    head = "".join(f"{name}:{before}{value}{after}\r\n" for name, before, value, after in lines).encode("latin-1")
    made = Connection(cast(socket.socket, Pieces([b"HTTP/1.1 200 OK\r\n" + head + b"\r\n"])), 5.0)
    found = made.ask(b"GET / HTTP/1.1\r\n\r\n", time.monotonic() + 60).headers
    expected = parse_headers(io.BytesIO(head + b"\r\n"))
    assert found.items() == [(name, value.strip(" \t")) for name, value in expected.items()]
    assert all(found.get_all(name) for name, *_ in lines)


def test_a_line_may_be_continued() -> None:
    made = Connection(cast(socket.socket, Pieces([response(IMAGE, "X-Robots-Tag: all,", "\t noai", "Via: 1")])), 5.0)
    found = made.ask(b"GET / HTTP/1.1\r\n\r\n", time.monotonic() + 60).headers
    assert (found["X-Robots-Tag"], found["Via"]) == ("all, noai", "1")


@pytest.mark.parametrize(
    "line", ["X: a" + " " * 60_000 + "b", "X:" + " " * 60_000, "X:" + " \t" * 30_000 + "\rb", "x" * 60_000]
)
def test_a_line_is_read_in_time_that_grows_with_its_length(line: str) -> None:
    """An expression that tries every place holds all threads: 4,000 spaces took minutes."""
    started = time.process_time()
    with suppress(Failure):
        read([response(IMAGE, line)])
    assert time.process_time() - started < 5


@pytest.mark.parametrize("line", ["X Odd: 1", "A: b\rX-Robots-Tag: all", ": 1", "X-Robots-Tag : noai", "no colon"])
def test_a_malformed_line_does_not_hide_the_rest_of_the_header(line: str) -> None:
    """http.client's parser drops what follows: an opt-out, or the length."""
    with pytest.raises(Failure, match=f"headers: a line is malformed: '{line.splitlines()[0]}'"):
        read([response(IMAGE, line, "X-Robots-Tag: noai")])
