"""Connections and bodies."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from curate.acquire.fetch import client, connect
from curate.acquire.fetch.client import Trip
from curate.acquire.fetch.codes import Failure
from curate.acquire.fetch.fetch import Fetcher
from tests.acquire.fetch.scripted import IMAGE, SETTINGS, Scripted, path_of, redirect, response


def test_every_request_has_a_separate_connection() -> None:
    answers = {"/404": response(b"no", status="404 Not Found"), "/302": redirect("/a")}
    with (
        Scripted(lambda head: answers.get(path_of(head), response())) as server,
        nullcontext(server.fetcher()) as fetcher,
    ):
        assert [fetcher.fetch(server.url(path)).code for path in ("/404", "/302", "/a")] == ["http_404", "done", "done"]
        assert len(server.requests) == server.connections == 4
        assert all(b"\r\nConnection: close\r\n" in head for head in server.requests)


def image_of(path: str) -> bytes:
    return IMAGE + path.encode() + bytes(30_000)


FOREIGN = response(IMAGE + b"foreign" + bytes(30_000))


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.03])
def test_no_unasked_response_is_stored(seconds: float, pieces: int) -> None:
    """A second response follows each one, at once or late, whole or in pieces, and the host is slow to answer."""
    size = -(-len(FOREIGN) // pieces)

    def script(head: bytes) -> Iterator[bytes]:
        time.sleep(seconds)
        yield response(image_of(path_of(head)))
        for place in range(0, len(FOREIGN), size):
            time.sleep(seconds)
            yield FOREIGN[place : place + size]

    paths = [f"/{n}" for n in range(40)]
    with Scripted(script) as server, nullcontext(server.fetcher()) as fetcher, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda path: fetcher.fetch(server.url(path)).data, paths))
    assert found == [image_of(path) for path in paths]


def test_what_comes_before_the_request_is_not_its_response() -> None:
    spoken = threading.Event()

    class Rude(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(FOREIGN)
            spoken.set()
            self.request.recv(1000)

    def opened(address: str, port: int, wait: float) -> socket.socket:
        sock = socket.create_connection((address, port))
        assert spoken.wait(60)
        return sock

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Rude) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        port = server.server_address[1]
        with (
            nullcontext(Fetcher(replace(SETTINGS, allow_ports=(port,), retries=0))) as fetcher,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr(connect, "_open", opened)  # waits until the host has spoken
            found = fetcher.fetch(f"http://127.0.0.1:{port}/a.jpg")
        server.shutdown()
    assert (found.code, found.detail) == ("reset", "the host closed the connection, or spoke before the request")


@pytest.mark.parametrize("size", [1000, 2**16, 2**20 + 7])
def test_the_cap_counts_the_body(size: int) -> None:
    image = IMAGE + bytes(size - len(IMAGE))
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (size, image)
    until_close = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + image

    def script(head: bytes) -> bytes | None:
        if path_of(head) == "/length":
            return response(image)
        if path_of(head) == "/chunked":
            return chunked
        return until_close if path_of(head) == "/close" else None

    with Scripted(script) as server:
        with nullcontext(server.fetcher(max_bytes=size)) as fetcher:
            assert [fetcher.fetch(server.url(path)).data == image for path in ("/length", "/chunked")] == [True, True]
        with nullcontext(server.fetcher(max_bytes=size - 1)) as fetcher:
            assert [fetcher.fetch(server.url(path)).code for path in ("/length", "/chunked")] == ["too_large"] * 2


def test_a_body_that_ends_with_the_connection() -> None:
    def script(head: bytes) -> bytes | None:
        return b"HTTP/1.0 200 OK\r\n\r\n" + IMAGE if len(server.requests) == 1 else None

    with Scripted(script) as server, nullcontext(server.fetcher(timeout=0.2, retries=0)) as fetcher:
        found = fetcher.fetch(server.url())
    assert found.code == "timeout"  # the connection stays open


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 twohundred OK\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 101 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\r\n\r\n",
    ],
)
def test_a_malformed_response_has_a_code(answer: bytes) -> None:
    with Scripted(answer) as server, nullcontext(server.fetcher(timeout=0.5, retries=0)) as fetcher:
        assert fetcher.fetch(server.url()).code in {"headers", "truncated", "timeout"}


@pytest.mark.parametrize(
    ("lines", "detail"),
    [
        (["7", str(len(IMAGE))], "2 different lengths are announced"),
        ([f"{len(IMAGE)}, 7"], "2 different lengths are announced"),
        (["-1"], "Content-Length: '-1' is not a number of bytes"),
        (["abc"], "Content-Length: 'abc' is not a number of bytes"),
        ([str(len(IMAGE)), f"{len(IMAGE)}, {len(IMAGE)}"], ""),
        ([f"{len(IMAGE)}, {len(IMAGE)}"], ""),
    ],
)
def test_lengths(lines: list[str], detail: str) -> None:
    head = "".join(f"Content-Length: {line}\r\n" for line in lines)
    answer = f"HTTP/1.1 200 OK\r\n{head}Connection: close\r\n\r\n".encode() + IMAGE
    with Scripted(answer) as server, nullcontext(server.fetcher(retries=0)) as fetcher:
        found = fetcher.fetch(server.url())
    assert (found.code, found.detail) == ("headers" if detail else "done", detail)


def test_a_length_that_is_given_twice_ends_the_body() -> None:
    """The host does not close the connection."""
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(IMAGE)}, {len(IMAGE)}\r\n\r\n".encode() + IMAGE
    with Scripted(answer) as server, nullcontext(server.fetcher(retries=0)) as fetcher:
        found = fetcher.fetch(server.url())
    assert (found.code, found.data) == ("done", IMAGE)


def test_pauses_do_not_count_as_slowness(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(client, "time", clock)

    def move(host: str, seconds: float) -> bool:
        clock.now += 5
        return host != "busy.example"

    trip = Trip(60.0, move)
    trip.take_turn("a.example")  # who starts the fetch has waited for this one
    clock.now += 1
    trip.take_turn("b.example")
    with trip.pausing():
        clock.now += 10
    with pytest.raises(Failure, match=r"deadline: busy\.example is busy"):
        trip.take_turn("busy.example")
    assert (trip.seconds(), trip.left(), trip.host) == (1.0, 39.0, "busy.example")
