"""Attacks by what was allowed once: tokens, sessions, streams and stored answers that outlive a login or a role."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import update

from curate.service.auth.clock import Clock
from curate.service.auth.roles import Role
from curate.service.database.models import Token
from curate.service.watch import tail
from tests.service.attacks.place import Place, said
from tests.service.people import Person, person
from tests.service.records import Recorded

RECIPE = "stages:\n  pool: {op: acquire.folder, namespace: a, path: photos}\n"
ORDER = {"workspace": "main", "recipe": RECIPE}


@dataclass
class Login:
    """A user with a token, and a browser session of it."""

    target: Place
    who: Person
    cookie: dict[str, str]
    form: dict[str, str]
    """The session's token for forms."""

    @property
    def bearer(self) -> dict[str, str]:
        return self.who.headers

    @property
    def token_id(self) -> str:
        return self.who.principal.token_id


@pytest.fixture
def user(target: Place, request: pytest.FixtureRequest) -> Login:
    """A new operator of `main`."""
    found = target.service, f"user{abs(hash(request.node.name))}"[:60]
    return logged_in(target, person(*found, Role.OPERATOR, target.people.workspace))


def logged_in(target: Place, who: Person) -> Login:
    header = target.ask("POST", "/login", data={"token": who.token}).headers["set-cookie"]
    target.client.cookies.clear()
    cookie = {"Cookie": header.partition(";")[0]}
    page = target.ask("GET", "/people", headers=cookie).text
    return Login(target, who, cookie, {"X-CSRF-Token": page.partition('name="csrf" value="')[2].partition('"')[0]})


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["token", "session"])
@pytest.mark.parametrize("days", [3650, None])
def test_a_stolen_token_makes_none_that_outlives_it(target: Place, user: Login, by: str, days: float | None) -> None:
    """A thief can exchange it for a session too."""
    ends = target.service.clock() + 3600
    with target.service.database.write() as session:
        session.execute(update(Token).where(Token.id == user.token_id).values(expires=ends))
    headers = user.bearer if by == "token" else user.cookie | user.form
    answer = target.ask("POST", f"users/{user.who.name}/tokens", headers=headers, json={"days": days})
    assert answer.status_code == 201, answer.text
    second = {"Authorization": f"Bearer {answer.json()['token']}"}
    third = target.ask("POST", f"users/{user.who.name}/tokens", headers=second, json={"days": days})
    with target.service.database.read() as session:
        for made in (answer, third):
            assert session.get_one(Token, made.json()["id"]).expires == ends


def test_a_token_is_replaced_within_its_time_and_renewed_by_an_admin(target: Place, user: Login) -> None:
    path, admin = f"users/{user.who.name}/tokens", target.people.admin
    replaced = target.ask("POST", path, user.who, json={}).json()
    assert target.ask("DELETE", f"tokens/{user.token_id}", user.who).status_code == 200
    assert target.ask("GET", "me", user.who).status_code == 401
    with target.service.database.read() as session:
        assert session.get_one(Token, replaced["id"]).expires == session.get_one(Token, user.token_id).expires
    renewed = target.ask("POST", path, admin, json={"days": 3650}).json()
    with target.service.database.read() as session:
        ends = session.get_one(Token, renewed["id"]).expires
    assert ends is not None and ends > target.service.clock() + 3600 * 86_400


def test_a_session_ends_with_its_token_and_is_new_at_each_login(target: Place, user: Login) -> None:
    fixed = {"Cookie": "curate_session=chosen-by-the-attacker"}
    header = target.ask("POST", "/login", headers=fixed, data={"token": user.who.token}).headers["set-cookie"]
    assert "chosen" not in header and "HttpOnly" in header and "samesite=strict" in header.lower()
    target.client.cookies.clear()
    assert target.ask("GET", "me", headers=fixed).status_code == 401
    for cookie in ({"Cookie": header.partition(";")[0]}, user.cookie):
        assert target.ask("GET", "me", headers=cookie).status_code == 200
    target.ask("DELETE", f"tokens/{user.token_id}", user.who)
    for cookie in ({"Cookie": header.partition(";")[0]}, user.cookie):
        assert target.ask("GET", "me", headers=cookie).status_code == 401


def test_a_clock_that_goes_back_revives_no_token(target: Place, user: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a jump forward, too: tokens end by it while it lasts."""
    ahead = [0.0]
    monkeypatch.setattr(target.service, "clock", Clock(wall=lambda: time.time() + ahead[0]))
    with target.service.database.write() as session:
        ends = target.service.clock() + 100
        session.execute(update(Token).where(Token.id == user.token_id).values(expires=ends))
    found = []
    for ahead[0] in (0.0, 200.0, -3000.0):
        found.append([target.ask("GET", "me", headers=headers).status_code for headers in (user.bearer, user.cookie)])
    assert found == [[200, 200], [401, 401], [401, 401]]


# --- streams ----------------------------------------------------------------------------------------------------------


@dataclass
class Followed:
    """A stream of events that is open."""

    connection: socket.socket

    @property
    def is_open(self) -> bool:
        """Whether the service has not closed it so far."""
        self.connection.setblocking(False)
        try:
            while self.connection.recv(65_536):
                pass
        except BlockingIOError:
            return True
        finally:
            self.connection.settimeout(60)
        return False

    def ends(self) -> bool:
        """Raises TimeoutError if it does not."""
        return said(self.connection).endswith(b"0\r\n\r\n")


@pytest.fixture(scope="module")
def run(target: Place) -> str:
    found: str = target.ask("POST", "runs", target.people.operator, json=ORDER).json()["id"]
    Recorded(str(target.folder / "main"), f"{found}-1")
    return found


@pytest.fixture
def often(target: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail checks logins in each pass."""
    monkeypatch.setattr(tail, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(target.service.watch, "_poll", 0.05)


@contextmanager
def followed(target: Place, run: str, headers: dict[str, str]) -> Iterator[Followed]:
    host = {"Host": urlsplit(target.url).netloc, "Accept": "text/event-stream", "Connection": "close"}
    lines = [
        f"GET /api/v1/runs/{run}/events HTTP/1.1",
        *(f"{name}: {value}" for name, value in (headers | host).items()),
    ]
    with closing(target.connected()) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        read = b""
        while b"event: state" not in read:
            read += connection.recv(65_536)
        yield Followed(connection)


def revoked(user: Login) -> Any:
    return user.target.ask("DELETE", f"tokens/{user.token_id}", user.target.people.admin)


def logged_out(user: Login) -> Any:
    return user.target.ask("POST", "/logout", headers=user.cookie | user.form)


def disabled(user: Login) -> Any:
    return user.target.ask("PATCH", f"users/{user.who.name}", user.target.people.admin, json={"disabled": True})


def without_role(user: Login) -> Any:
    path = f"users/{user.who.name}/grants?workspace=main"
    return user.target.ask("DELETE", path, user.target.people.admin)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("end", "by", "ends"),
    [
        (revoked, "token", True), (revoked, "session", True),
        (disabled, "token", True), (disabled, "session", True),
        (without_role, "token", True), (without_role, "session", True),
        (logged_out, "session", True), (logged_out, "token", False),
    ],
)  # fmt: skip
def test_a_stream_ends_with_what_allowed_it(
    target: Place, run: str, user: Login, end: Callable[[Login], Any], by: str, ends: bool
) -> None:
    """The streams of others continue; a logout ends those of its browser alone."""
    with followed(target, run, target.people.viewer.headers) as other:
        with followed(target, run, user.cookie if by == "session" else user.bearer) as stream:
            assert end(user).status_code < 400
            if ends:
                assert stream.ends()
            else:
                passes(target)
                assert stream.is_open
        assert other.is_open


def passes(target: Place) -> None:
    """Wait until the tail has looked at the logins of its viewers twice."""
    [found] = [one for one in target.service.watch._tails.values() if not one.dead]
    check, looked = found._check, threading.Semaphore(0)

    def counted() -> None:
        check()
        looked.release()

    found._check = counted  # type: ignore[method-assign]
    assert looked.acquire(timeout=60) and looked.acquire(timeout=60)


def test_the_usual_interval_of_looks_is_seconds() -> None:
    assert tail.CHECK_SECONDS + tail.POLL_SECONDS <= 10


# --- repeated requests ------------------------------------------------------------------------------------------------


def test_a_repeated_submission_needs_the_role_again(target: Place, user: Login) -> None:
    order = ORDER | {"id": "repeated"}
    first = target.ask("POST", "runs", user.who, json=order)
    assert first.status_code == 202
    lesser = {"Authorization": f"Bearer {target.token(user.who, role=Role.VIEWER)}"}
    limited = target.ask("POST", "runs", json=order, headers=lesser)
    assert target.ask("POST", "runs", user.who, json=order).status_code == 200
    assert without_role(user).status_code == 200
    lost = target.ask("POST", "runs", user.who, json=order)
    assert (limited.status_code, lost.status_code) == (403, 404)
    for answer in (limited, lost):
        assert first.json()["id"] not in answer.text
