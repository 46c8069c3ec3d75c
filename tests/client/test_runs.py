"""A run of the service from Python: waiting, events over a broken connection, logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from curate.client import Client, ServerError
from curate.client import client as module
from curate.core.errors import CurateError, DrainedError


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)


class Stream(httpx2.SyncByteStream):
    """Bytes of events, then the end of the connection: by the server, or broken."""

    def __init__(self, *chunks: bytes, broken: bool = False) -> None:
        self.chunks, self.broken = chunks, broken

    def __iter__(self) -> Iterator[bytes]:
        yield from self.chunks
        if self.broken:
            raise httpx2.ReadError("connection reset")


def sent(id: str, event: str = "progress") -> bytes:
    return f"id: {id}\ndata: {json.dumps({'id': id, 'event': event, 'time': 't', 'data': {}})}\n\n".encode()


END = b'event: end\ndata: {"state": "done"}\n\n'
STATE = b'event: state\ndata: {"state": "running"}\n\n'


def client(*answers: Any) -> tuple[Client, list[httpx2.Request]]:
    """Streams are answered as events, exceptions are raised, and other values are JSON."""
    left, requests = list(answers), list[httpx2.Request]()

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        if isinstance(found, Stream):
            return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, stream=found)
        return found if isinstance(found, httpx2.Response) else httpx2.Response(200, json=found)

    return Client("http://curate.example", "cur_x", transport=httpx2.MockTransport(answer)), requests


def status(state: str, reason: str = "", stoppable: bool = False) -> dict[str, Any]:
    return {"id": "r", "state": state, "reason": reason, "stoppable": stoppable}


def test_events_continue_after_a_broken_connection() -> None:
    made, requests = client(
        Stream(STATE, sent("1:0"), sent("1:1"), broken=True),
        httpx2.ConnectError("refused"),
        Stream(sent("1:2"), b": ping\n\n"),  # ended by the server, as when it restarts
        Stream(sent("2:0"), END, sent("never")),
    )
    events = list(made.run("r").events())
    assert [event["id"] for event in events] == ["", "1:0", "1:1", "1:2", "2:0"]
    assert events[0] == {"id": "", "event": "state", "data": {"state": "running"}}
    assert [request.headers.get("Last-Event-ID") for request in requests] == [None, "1:1", "1:1", "1:2"]
    assert {request.url.path for request in requests} == {"/api/v1/runs/r/events"}


def test_events_of_an_unknown_run_end_at_once() -> None:
    body = {"title": "t", "status": 404, "code": "not_found", "detail": "run r: not found"}
    made, requests = client(httpx2.Response(404, json=body))
    with pytest.raises(ServerError, match="not found"):
        list(made.run("r").events())
    assert len(requests) == 1


@pytest.mark.parametrize("patience", [-1.0, 300.0])
def test_events_give_up_on_a_server_that_is_gone(monkeypatch: pytest.MonkeyPatch, patience: float) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", patience)
    refused = httpx2.ConnectError("refused")
    made, requests = client(*([refused] if patience > 0 else [Stream(STATE, broken=True), refused]))
    with pytest.raises(ServerError, match="no answer"):
        list(made.run("r").events())
    assert len(requests) == 1  # one that has never answered, too


def test_waiting_outlasts_a_restart_of_the_server() -> None:
    gone = [httpx2.ConnectError("refused")] * 7  # more than one request's attempts
    made, _ = client(status("running"), *gone, status("done"))
    assert made.run("r").wait()["state"] == "done"


def test_waiting_returns_the_status_of_a_run_that_is_done() -> None:
    made, _ = client(status("queued"), status("lost", stoppable=True), status("running"), status("done"))
    assert made.run("r").wait()["state"] == "done"


@pytest.mark.parametrize(
    ("state", "error"),
    [("failed", CurateError), ("killed", CurateError), ("lost", CurateError), ("stopped", DrainedError)],
)
def test_waiting_raises_for_other_ends(state: str, error: type[Exception]) -> None:
    made, _ = client(status(state, "no space left"))
    with pytest.raises(error, match=f"^run r: {state}: no space left$"):
        made.run("r").wait()


def test_waiting_has_a_time_limit() -> None:
    made, _ = client(status("running"))
    with pytest.raises(TimeoutError, match="still running"):
        made.run("r").wait(timeout=-1)


def test_logs_follow_until_the_run_has_ended() -> None:
    def page(*messages: str, after: str | None) -> dict[str, Any]:
        return {"items": [{"message": message} for message in messages], "next": after}

    made, requests = client(page("a", after="1"), page(after="1"), page("b", after="2"), page("c", after=None))
    assert [line["message"] for line in made.run("r").logs(follow=True)] == ["a", "b", "c"]
    assert [request.url.params.get("after") for request in requests] == ["", "1", "1", "2"]


def test_logs_end_with_what_there_is() -> None:
    page = {"items": [{"message": "a"}], "next": "1"}
    made, _ = client(page, {"items": [], "next": "1"})
    assert [line["message"] for line in made.run("r").logs()] == ["a"]
