"""Attack x outcome: who gets in, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy import select
from starlette.testclient import TestClient

from curate.service.auth import sessions, tokens
from curate.service.auth.dependency import principal
from curate.service.database.models import AuditEntry, Token, User
from curate.service.problems import Problem, TooManyProblem
from curate.service.rest.routing import Who
from curate.service.service import Service
from tests.service.people import People, person


@pytest.fixture
def client(service: Service) -> TestClient:
    """An application with one route to read, one to write, and those that are public."""
    app = FastAPI(dependencies=[Depends(principal)], openapi_url=None)
    app.state.service = service

    @app.exception_handler(Problem)
    def answer(request: Request, problem: Problem) -> JSONResponse:
        headers = {"Retry-After": f"{problem.retry_after:.0f}"} if isinstance(problem, TooManyProblem) else {}
        return JSONResponse({"code": problem.code, "detail": str(problem)}, problem.status, headers)

    @app.get("/api/v1/me")
    @app.post("/api/v1/me")
    @app.get("/page")
    async def me(request: Request, who: Who) -> dict[str, Any]:
        form = dict(await request.form()) if request.method == "POST" else {}
        return {"user": who.user, "csrf": request.state.csrf, "form": form}

    @app.get("/healthz")
    def health() -> str:
        return "ok"

    @app.post("/login")
    async def login(request: Request) -> JSONResponse:
        form = await request.form()
        made = sessions.log_in(service, request, str(form["token"]))
        response = JSONResponse({})
        sessions.set_cookie(response, service, made)
        return response

    return TestClient(app)


@pytest.fixture
def csrf(client: TestClient, people: People) -> str:
    """CSRF token of the viewer, whom the client is logged in as."""
    assert client.post("/login", data={"token": people.viewer.token}).status_code == 200
    found = client.get("/api/v1/me").json()
    assert found["user"] == "viewer" and found["csrf"]
    return str(found["csrf"])


def change(service: Service, people: People, **values: float) -> None:
    with service.database.write() as session:
        token = session.get(Token, people.viewer.principal.token_id)
        assert token is not None
        for name, value in values.items():
            setattr(token, name, value)


def disable(service: Service, people: People) -> None:
    with service.database.write() as session:
        session.scalars(select(User).where(User.name == "viewer")).one().disabled = 1.0


ENDED: dict[str, Callable[[Service, People], None]] = {
    "expired": lambda service, people: change(service, people, expires=service.clock() - 1),
    "expires now": lambda service, people: change(service, people, expires=service.clock()),
    "revoked": lambda service, people: change(service, people, revoked=service.clock()),
    "revoked in the future": lambda service, people: change(service, people, revoked=service.clock() + 1e9),
    "disabled user": disable,
}


def test_a_token_opens_pages_and_the_api(client: TestClient, people: People) -> None:
    assert client.get("/api/v1/me", headers=people.viewer.headers).json()["user"] == "viewer"
    assert client.get("/page", headers=people.viewer.headers).json() == {"user": "viewer", "csrf": "", "form": {}}
    assert client.post("/api/v1/me", headers=people.viewer.headers).status_code == 200


def test_only_public_routes_are_open(client: TestClient) -> None:
    assert client.get("/healthz").status_code == 200
    for path in ("/api/v1/me", "/page"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (401, "not_logged_in")


@pytest.mark.parametrize(
    "header",
    [
        "Bearer {other}",
        "Bearer cur_00000000_{secret}",
        "Bearer {token}x",
        "Bearer {token}{token}",
        "Bearer {upper}",
        "Bearer",
        "Bearer ",
        "Basic {token}",
        "{token}",
        "Bearer ' OR 1=1 --",
        "Bearer cur_%' OR '1'='1_{secret}",
        "Bearer \x00",
        "",
    ],
)
def test_any_other_token_is_unknown(client: TestClient, people: People, header: str) -> None:
    token = people.viewer.token
    secret = token.split("_", 2)[2]
    other = f"cur_{people.viewer.principal.token_id}_{people.admin.token.split('_', 2)[2]}"
    sent = header.format(token=token, secret=secret, other=other, upper=token.upper())
    answer = client.get("/api/v1/me", headers={"Authorization": sent.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.json()["detail"] == client.get("/api/v1/me").json()["detail"]  # never says which


@pytest.mark.parametrize("how", ENDED)
def test_an_ended_token_ends_its_sessions_at_once(
    client: TestClient, service: Service, people: People, csrf: str, how: str
) -> None:
    assert client.get("/api/v1/me", headers=people.viewer.headers).status_code == 200
    assert client.get("/api/v1/me").status_code == 200
    ENDED[how](service, people)
    assert client.get("/api/v1/me", headers=people.viewer.headers).status_code == 401
    assert client.get("/api/v1/me").status_code == 401
    client.cookies.clear()
    assert client.post("/login", data={"token": people.viewer.token}).status_code == 401


def test_a_wrong_token_is_not_rescued_by_a_session(client: TestClient, csrf: str) -> None:
    assert client.get("/api/v1/me", headers={"Authorization": "Bearer x"}).status_code == 401


def test_a_session_ends_by_itself(client: TestClient, service: Service, csrf: str) -> None:
    before = service.clock()
    service.clock = lambda: before + service.settings.limits.session_seconds + 1
    assert client.get("/api/v1/me").status_code == 401


@pytest.mark.parametrize(
    ("headers", "form", "status"),
    [
        ({}, {}, 403),
        ({}, {"csrf": ""}, 403),
        ({}, {"csrf": "wrong"}, 403),
        ({}, {"csrf": "{other}"}, 403),
        ({"X-CSRF-Token": "wrong"}, {"csrf": "{csrf}"}, 403),
        ({}, {"csrf": "{csrf}"}, 200),
        ({"X-CSRF-Token": "{csrf}"}, {}, 200),
        ({"Origin": "http://testserver"}, {"csrf": "{csrf}"}, 200),
        ({"Origin": "http://evil.example"}, {"csrf": "{csrf}"}, 403),
        ({"Origin": "http://testserver.evil.example"}, {"csrf": "{csrf}"}, 403),
        ({"Origin": "http://testserver:81"}, {"csrf": "{csrf}"}, 403),
        ({"Origin": "null"}, {"csrf": "{csrf}"}, 403),
        ({"Origin": "http://["}, {"csrf": "{csrf}"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, {"csrf": "{csrf}"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, {"csrf": "{csrf}"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, {"csrf": "{csrf}"}, 403),
    ],
)
def test_a_write_by_a_session_must_come_from_our_page(
    client: TestClient,
    service: Service,
    people: People,
    csrf: str,
    headers: dict[str, str],
    form: dict[str, str],
    status: int,
) -> None:
    another = TestClient(client.app)
    another.post("/login", data={"token": people.viewer.token})
    other = another.get("/api/v1/me").json()["csrf"]
    data = {name: value.format(csrf=csrf, other=other) for name, value in form.items()}
    sent = {name: value.format(csrf=csrf) for name, value in headers.items()}
    answer = client.post("/api/v1/me", data={"note": "x", **data}, headers=sent)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["form"]["note"] == "x"  # the endpoint can still read the form
    else:
        with service.database.read() as session:
            entry = session.scalars(select(AuditEntry).order_by(AuditEntry.id.desc())).first()
        assert entry is not None
        assert (entry.user, entry.action, entry.outcome) == ("viewer", "csrf", "forbidden")


def test_a_form_of_another_site_cannot_log_a_user_in(client: TestClient, people: People) -> None:
    answer = client.post("/login", data={"token": people.viewer.token}, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403 and not answer.cookies


@pytest.mark.parametrize(("url", "secure"), [("http://testserver", False), ("https://testserver", True)])
def test_the_cookie_is_kept_from_scripts_and_other_sites(
    client: TestClient, service: Service, people: People, url: str, secure: bool
) -> None:
    service.settings = service.settings.model_copy(update={"url": url})
    cookie = client.post("/login", data={"token": people.viewer.token}).headers["set-cookie"]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= attributes
    assert ("secure" in attributes) is secure and not any(one.startswith("domain") for one in attributes)
    assert cookie.startswith("__Host-" if secure else "curate_session=")
    with service.database.read() as session:
        stored = [str(row) for row in session.execute(select(sessions.BrowserSession.digest))]
    assert cookie.split(";")[0].split("=", 1)[1] not in str(stored)


def test_a_plain_origin_is_not_believed_behind_tls(client: TestClient, service: Service, csrf: str) -> None:
    service.settings = service.settings.model_copy(update={"url": "https://testserver"})
    assert client.get("/api/v1/me").status_code == 401, "a cookie that any host of the domain may have set"
    client.cookies.set(sessions.SECURE_COOKIE, client.cookies[sessions.COOKIE])
    for origin, status in (("http://testserver", 403), ("https://testserver", 200)):
        assert client.post("/api/v1/me", data={"csrf": csrf}, headers={"Origin": origin}).status_code == status


def test_a_user_may_send_so_many_requests_a_minute_with_all_tokens(
    client: TestClient, service: Service, people: People
) -> None:
    service.limiter = type(service.limiter)(service.settings.limits.model_copy(update={"requests_per_minute": 3}))
    with service.database.write() as session:
        second, text = tokens.made(people.viewer.principal.user_id, service.clock())
        session.add(second)
    each = [people.viewer.headers, {"Authorization": f"Bearer {text}"}]
    codes = [client.get("/api/v1/me", headers=each[number % 2]).status_code for number in range(5)]
    assert codes == [200, 200, 200, 429, 429]
    answer = client.get("/api/v1/me", headers=people.viewer.headers)
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert client.get("/api/v1/me", headers=people.operator.headers).status_code == 200


def test_an_address_may_fail_so_often_and_valid_tokens_still_work(
    client: TestClient, service: Service, people: People
) -> None:
    wrong = {"Authorization": "Bearer cur_00000000_" + "x" * 43}
    codes = [client.get("/api/v1/me", headers=wrong).status_code for _ in range(12)]
    assert codes == [401] * 10 + [429] * 2
    assert client.post("/login", data={"token": "x"}).status_code == 429
    assert client.get("/api/v1/me", headers=people.viewer.headers).status_code == 200
    assert client.post("/login", data={"token": people.viewer.token}).status_code == 200
    with service.database.read() as session:
        entries = session.scalars(select(AuditEntry).where(AuditEntry.outcome == "not_logged_in")).all()
    assert len(entries) == 10 and {entry.user for entry in entries} == {"-"}


def test_reading_works_while_the_database_cannot_be_written(
    client: TestClient, service: Service, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise Problem("full")

    monkeypatch.setattr(service.database, "write", full)
    assert client.get("/api/v1/me", headers=people.viewer.headers).status_code == 200


def test_the_last_use_is_noted_to_the_minute(client: TestClient, service: Service, people: People) -> None:
    def used() -> float | None:
        with service.database.read() as session:
            return session.scalars(select(Token.used).where(Token.id == people.viewer.principal.token_id)).one()

    now = service.clock()
    for later, noted in ((0.0, now), (30.0, now), (61.0, now + 61), (-1000.0, now - 1000)):
        service.clock = lambda later=later: now + later  # type: ignore[misc]
        assert client.get("/api/v1/me", headers=people.viewer.headers).status_code == 200
        assert used() == noted


def test_someone_else_cannot_use_a_session_of_another_service(
    client: TestClient, service: Service, people: People
) -> None:
    client.cookies.set(sessions.COOKIE, "x" * 43)
    assert client.get("/api/v1/me").status_code == 401
    other = person(service, "other")
    assert client.get("/api/v1/me", headers=other.headers).json()["user"] == "other"
