"""Attacks by a connection: slow, long, doubled or forged parts of requests, sessions and streams that outlive their
token."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from curate.service import protocol
from curate.service.auth.clock import now
from tests.service.attacks.place import Place
from tests.service.records import Recorded


def connected(target: Place) -> socket.socket:
    parts = urlsplit(target.url)
    assert parts.hostname and parts.port
    return socket.create_connection((parts.hostname, parts.port), 20)


def said(connection: socket.socket) -> bytes:
    """All that the service says until it closes the connection."""
    found = b""
    while True:
        try:
            more = connection.recv(65_536)
        except ConnectionResetError:
            return found
        if not more:
            return found
        found += more


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", 0.3)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\ntoken=",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ntok",
    ],
    ids=["nothing", "a line", "half a header", "half a body", "half a chunk"],
)
@pytest.mark.usefixtures("hasty")
def test_a_client_that_is_slow_on_purpose_is_dropped(target: Place, sent: bytes) -> None:
    with closing(connected(target)) as connection:
        connection.sendall(sent)
        began = time.monotonic()
        said(connection)
        assert time.monotonic() - began < 10
    assert "Traceback" not in "\n".join(target.log.lines)


TWICE = (
    b"Content-Length: 4\r\nContent-Length: 5\r\n",
    b"Content-Length: 4\r\nTransfer-Encoding: gzip\r\n",
    b"Host: attacker.example\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length : 4\r\n",
    b"X: a\x00b\r\n",
)


@pytest.mark.parametrize("header", TWICE, ids=range(len(TWICE)))
def test_a_request_that_two_programs_could_read_differently_is_rejected(target: Place, header: bytes) -> None:
    host = urlsplit(target.url).netloc.encode()
    with closing(connected(target)) as connection:
        connection.sendall(
            b"POST /login HTTP/1.1\r\nHost: " + host + b"\r\n" + header + b"\r\nabcdGET /me HTTP/1.1\r\n"
        )
        answer = said(connection)
    assert answer.split(b" ")[1] in (b"400", b"501"), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_session_ends_with_its_token_and_is_new_at_each_login(target: Place) -> None:
    text = target.token(target.people.operator)
    fixed = {"Cookie": "curate_session=chosen-by-the-attacker"}
    login = target.ask("POST", "/login", headers=fixed, data={"token": text})
    header = login.headers["set-cookie"]
    assert "chosen" not in header and "HttpOnly" in header and "samesite=strict" in header.lower()
    target.client.cookies.clear()
    cookie = {"Cookie": header.partition(";")[0]}
    assert target.ask("GET", "me", headers=cookie).status_code == 200
    assert target.ask("GET", "me", headers=fixed).status_code == 401
    target.ask("DELETE", f"tokens/{text[4:12]}", target.people.operator)
    assert target.ask("GET", "me", headers=cookie).status_code == 401


def test_forged_addresses_do_not_escape_the_limit_of_failed_logins(
    target: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(target.service.limiter, "failure", seen.append)
    for number in range(3):
        forged = {"X-Forwarded-For": f"10.0.0.{number}", "Forwarded": f"for=10.0.0.{number}", "X-Real-IP": "10.0.0.9"}
        target.ask("GET", "me", headers=forged | {"Authorization": "Bearer x"})
    assert seen == ["127.0.0.1"] * 3


RECIPE = "stages:\n  pool: {op: acquire.folder, namespace: a, path: photos}\n"


@pytest.fixture
def streaming(target: Place) -> Iterator[tuple[str, threading.Thread, list[bytes]]]:
    """A token whose stream of events is open, the thread that reads it, and what it reads."""
    answer = target.ask("POST", "runs", target.people.operator, json={"workspace": "main", "recipe": RECIPE})
    run = answer.json()["id"]
    Recorded(str(target.folder / "main"), f"{run}-1")
    text, read, began = target.token(target.people.viewer), list[bytes](), threading.Event()

    def follow() -> None:
        headers = {"Authorization": f"Bearer {text}", "Accept": "text/event-stream"}
        with target.client.stream("GET", f"/api/v1/runs/{run}/events", headers=headers) as answer:
            for chunk in answer.iter_raw():
                read.append(chunk)
                began.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert began.wait(20)
    yield text, thread, read
    thread.join(20)


def test_a_stream_ends_with_its_token(target: Place, streaming: tuple[str, threading.Thread, list[bytes]]) -> None:
    text, thread, _ = streaming
    began = now()
    assert target.ask("DELETE", f"tokens/{text[4:12]}", target.people.admin).status_code == 200
    thread.join(20)
    assert not thread.is_alive() and now() - began < 15
