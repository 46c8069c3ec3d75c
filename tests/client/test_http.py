"""Requests: what is repeated, and what people read when something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx2
import pytest

from curate.client import Client, ServerError
from curate.core.errors import CurateError

TOKEN = "cur_01234567_abc"


class Server:
    """Answers with the given ones in turn, and keeps the requests."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.answers, self.requests = list(answers), list[httpx2.Request]()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self) -> Client:
        return Client("http://curate.example", TOKEN, transport=httpx2.MockTransport(self))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that would have been waited."""
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    return waited


def problem(
    status: int, code: str, detail: str, headers: dict[str, str] | None = None, **more: object
) -> httpx2.Response:
    body = {"title": "t", "status": status, "code": code, "detail": detail, "request_id": "r", **more}
    given = {"Content-Type": "application/problem+json", **(headers or {})}
    return httpx2.Response(status, content=json.dumps(body), headers=given)


def busy(status: int = 503, **headers: str) -> httpx2.Response:
    return problem(status, "unavailable", "try again", headers)


def test_requests_carry_the_token_and_lead_to_the_api() -> None:
    server = Server(httpx2.Response(200, json={"user": "ada"}))
    assert server.client().me() == {"user": "ada"}
    [request] = server.requests
    assert str(request.url) == "http://curate.example/api/v1/me"
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"


def test_a_problem_is_one_line_with_its_code_and_fields() -> None:
    errors = [{"field": "set.0", "message": "too long"}]
    server = Server(problem(422, "invalid", "the request is wrong", errors=errors))
    with pytest.raises(ServerError) as raised:
        server.client().me()
    assert str(raised.value) == "the request is wrong; set.0: too long"
    assert (raised.value.code, raised.value.status) == ("invalid", 422)


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (httpx2.Response(200, text="<html>Welcome</html>"), "not_the_service", "HTTP 200 without the service's JSON"),
        (httpx2.Response(404, text="nothing"), "not_the_service", "HTTP 404 without the service's JSON"),
        (httpx2.Response(400, json={"error": 1}), "not_the_service", "HTTP 400 without the service's JSON"),
        (
            httpx2.Response(308, headers={"Location": "https://curate.example/"}),
            "redirect",
            "leads to https://curate.example/; give that server's URL",
        ),
    ],
)
def test_what_is_not_the_service_is_named(answer: httpx2.Response, code: str, words: str) -> None:
    with pytest.raises(ServerError) as raised:
        Server(answer).client().me()
    assert raised.value.code == code and words in str(raised.value)
    assert "\n" not in str(raised.value) and TOKEN not in str(raised.value)


def test_reading_is_repeated_while_the_server_is_busy(pauses: list[float]) -> None:
    refused = httpx2.ConnectError("refused")
    server = Server(busy(), busy(429, **{"Retry-After": "7"}), refused, httpx2.Response(200, json=1))
    assert server.client().get("me") == 1
    assert len(pauses) == 3 and 7 <= pauses[1] < 8


def test_reading_ends_with_the_last_error(pauses: list[float]) -> None:
    server = Server(*[httpx2.ConnectError("closed") for _ in range(5)])
    with pytest.raises(ServerError, match=r"^http://curate.example: no answer \(closed\); check the URL") as raised:
        server.client().me()
    assert raised.value.code == "unreachable" and not server.answers and len(pauses) == 4


def test_a_pause_that_is_too_long_is_not_waited_for(pauses: list[float]) -> None:
    server = Server(busy(429, **{"Retry-After": "3600"}))
    with pytest.raises(ServerError, match="try again"):
        server.client().me()
    assert not pauses


def test_submitting_is_repeated_with_the_same_id(pauses: list[float]) -> None:
    server = Server(httpx2.ReadTimeout("late"), busy(), httpx2.Response(200, json={"id": "r1"}))
    assert server.client().submit("stages: {}", workspace="main", title=None, priority=3).id == "r1"
    [body] = {request.content for request in server.requests}
    order = json.loads(body)
    assert len(server.requests) == 3 and len(order.pop("id")) == 32
    assert order == {"workspace": "main", "recipe": "stages: {}", "set": [], "priority": 3}


@pytest.mark.parametrize("request_", [lambda c: c.run("r").resume(), lambda c: c.post("users/a/tokens", {})])
def test_what_would_happen_twice_is_not_repeated(request_: Callable[[Client], object], pauses: list[float]) -> None:
    server = Server(httpx2.ReadTimeout("late"))
    with pytest.raises(ServerError, match="no answer"):
        request_(server.client())
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "request_", [lambda c: c.submit("x", workspace="main"), lambda c: c.run("r").stop(), lambda c: c.me()]
)
def test_a_conflict_is_not_repeated(request_: Callable[[Client], object], pauses: list[float]) -> None:
    server = Server(problem(409, "conflict", "run r: already done"))
    with pytest.raises(ServerError, match="already done"):
        request_(server.client())
    assert len(server.requests) == 1


def test_setting_a_tag_is_not_repeated(pauses: list[float]) -> None:
    server = Server(busy())
    with pytest.raises(ServerError, match="try again"):
        server.client().tag("main", "a/b", "good", "datasets/a/f")
    [request] = server.requests
    assert (request.method, request.url.raw_path) == ("PUT", b"/api/v1/workspaces/main/datasets/a%2Fb/tags/good")


def test_lists_follow_the_cursor() -> None:
    pages = [{"items": [{"id": "a"}, {"id": "b"}], "next": "c1"}, {"items": [{"id": "c"}], "next": None}]
    server = Server(*(httpx2.Response(200, json=page) for page in pages))
    assert [run["id"] for run in server.client().runs(state="running")] == ["a", "b", "c"]
    queries = [dict(request.url.params) for request in server.requests]
    assert queries == [{"state": "running", "limit": "50"}, {"state": "running", "limit": "50", "cursor": "c1"}]


@pytest.mark.parametrize("tagged", ["good", "@good", "name@", ""])
def test_a_tag_needs_a_name(tagged: str) -> None:
    with pytest.raises(CurateError, match=r"expected NAME@TAG"):
        Server().client().resolve(tagged)
