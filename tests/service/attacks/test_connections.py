"""Attacks by a connection: slow, doubled or forged parts of requests, many connections, clients that do not read."""

from __future__ import annotations

import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import cast
from urllib.parse import urlsplit

import httpx2
import pytest

from curate.core.errors import CurateError
from curate.service import serving
from curate.service.auth.roles import Role
from curate.service.policy.sandbox import Outcome
from curate.service.reconcile.targets import Cluster, Targets
from tests.service.attacks.place import Place, said
from tests.service.people import Person, person


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.3)


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
    with closing(target.connected()) as connection:
        connection.sendall(sent)
        said(connection)  # until it is dropped
    assert "Traceback" not in "\n".join(target.log.lines)


TWICE = (
    b"Content-Length: 4\r\nContent-Length: 5\r\n",
    b"Content-Length: 4\r\nTransfer-Encoding: gzip\r\n",
    b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    b"Host: attacker.example\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length : 4\r\n",
    b"X: a\x00b\r\n",
)


@pytest.mark.parametrize("header", TWICE, ids=range(len(TWICE)))
def test_a_request_that_two_programs_could_read_differently_is_rejected(target: Place, header: bytes) -> None:
    host = urlsplit(target.url).netloc.encode()
    with closing(target.connected()) as connection:
        connection.sendall(
            b"POST /login HTTP/1.1\r\nHost: " + host + b"\r\n" + header + b"\r\nabcdGET /me HTTP/1.1\r\n"
        )
        answer = said(connection)
    assert answer.split(b" ")[1] in (b"400", b"501"), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1


def test_forged_addresses_do_not_escape_the_limit_of_failed_logins(
    target: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(target.service.limiter, "failure", seen.append)
    for number in range(3):
        forged = {"X-Forwarded-For": f"10.0.0.{number}", "Forwarded": f"for=10.0.0.{number}", "X-Real-IP": "10.0.0.9"}
        target.ask("GET", "me", headers=forged | {"Authorization": "Bearer x"})
    assert seen == ["127.0.0.1"] * 3


@pytest.mark.usefixtures("hasty")
def test_single_bytes_win_no_time(target: Place) -> None:
    with closing(target.connected()) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        until = time.monotonic() + 60
        while not select.select([connection], [], [], 0.05)[0]:
            with suppress(OSError):  # closed meanwhile, which the next look sees
                connection.sendall(b"x")
            assert time.monotonic() < until
        assert said(connection) == b""


def test_many_idle_connections_lock_no_user_out(target: Place) -> None:
    """Three times as many as there may be, long before they are late; a third of them sends a byte."""
    host = urlsplit(target.url).netloc.encode()
    with ExitStack() as stack:
        crowd = [stack.enter_context(closing(target.connected())) for _ in range(300)]
        for one in crowd[::3]:
            with suppress(OSError):  # replaced by a later one already
                one.sendall(b"G")
        for path, status in ((b"/healthz", b"200"), (b"/api/v1/me", b"401")):
            with closing(target.connected()) as connection:
                connection.sendall(b"GET " + path + b" HTTP/1.1\r\nConnection: close\r\nHost: " + host + b"\r\n\r\n")
                assert said(connection).split(b" ")[1] == status
        closed = select.select(crowd, [], [], 0)[0]
        assert len(crowd) - len(closed) <= target.service.settings.limits.connections


def test_a_client_that_does_not_read_its_answers_is_dropped(target: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped, drop = threading.Event(), serving.Protocol.drop

    def noted(one: serving.Protocol) -> None:
        drop(one)
        dropped.set()

    monkeypatch.setattr(serving, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(serving.Protocol, "drop", noted)
    lines = ["GET /openapi.json HTTP/1.1", f"Host: {urlsplit(target.url).netloc}"]
    lines += [f"{name}: {value}" for name, value in target.people.viewer.headers.items()]
    with closing(target.connected()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall("\r\n".join([*lines, "", ""]).encode() * 100)
        assert dropped.wait(60)


class Slow:
    """A cluster that answers once it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def version(self) -> str:
        assert self.released.wait(60)
        raise CurateError("released")

    def close(self) -> None:
        pass


def test_a_user_with_slow_requests_takes_no_thread_from_others(target: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has 40 threads."""
    slow, many = Slow(), 60
    monkeypatch.setattr(target.service, "targets", Targets(lambda *_: cast(Cluster, slow), seconds=60.0))
    operator = target.people.operator
    with ThreadPoolExecutor(many) as pool:
        answers = [pool.submit(target.ask, "POST", "targets/local/check", operator) for _ in range(many)]
        try:
            users = target.service.limiter.turns.requests
            while users.get(operator.principal.user_id, 0) < many:
                threading.Event().wait(0.02)
            assert target.ask("GET", "me", target.people.viewer).status_code == 200
            assert not any(answer.done() for answer in answers)
        finally:
            slow.released.set()
        assert {answer.result().status_code for answer in answers} == {200}


def test_plans_of_many_users_take_no_thread_from_others(target: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each user sends 8 plans, which never end by themselves: 2 run, of each user at most 2 wait."""
    ended, rejected = threading.Event(), threading.Semaphore(0)

    def plan(*_: object) -> Outcome:
        assert ended.wait(60)
        return Outcome()

    monkeypatch.setattr(target.service.sandbox, "plan", plan)
    monkeypatch.setattr(target.service.sandbox, "check", plan)
    place = target.people.workspace
    users = [person(target.service, f"planner{number}", Role.OPERATOR, place) for number in range(5)]
    order = {"workspace": "main", "recipe": "stages: {}"}
    verbs = ["recipes/plan", "recipes/check", "runs"]

    def send(who: Person, number: int) -> httpx2.Response:
        answer = target.ask("POST", verbs[number % 3], who, json=order)
        if answer.status_code == 429:
            rejected.release()
        return answer

    with ThreadPoolExecutor(40) as pool:
        answers = [pool.submit(send, who, number) for who in users for number in range(8)]
        try:
            for _ in range(40 - 2 - 5 * 2):
                assert rejected.acquire(timeout=60)
            assert target.ask("GET", "me", target.people.viewer).status_code == 200
            assert sum(answer.done() for answer in answers) == 28
            form = {"workspace": "main", "recipe": "stages: {}", "do": "plan"}
            page = target.ask("POST", "/new", users[0], data=form)
            assert (page.status_code, page.headers["Retry-After"]) == (429, "5") and "stages: {}" in page.text
        finally:
            ended.set()
        found = [answer.result() for answer in answers]
    assert {int(one.headers["Retry-After"]) for one in found if one.status_code == 429} == {5}
    assert sum(one.status_code in (200, 202) for one in found) == 12
