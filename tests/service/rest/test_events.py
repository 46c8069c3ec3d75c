"""Events and logs of a run: pages, and streams over a real connection."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx2
import pytest

from curate.service.settings import Limits
from tests.service.people import Person
from tests.service.records import step
from tests.service.rest.site import Site

ALL = ["1:1", "1:2", "2:1"]
JSON = {"Accept": "application/json"}
Sent = tuple[str, str, Any]


@pytest.fixture(scope="module", autouse=True)
def quick(site: Site) -> Iterator[None]:
    """Tails look more often than every two seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.service.watch, "_poll", 0.02)
        patch.setattr("curate.service.watch.reader.FRESH_SECONDS", 0.0)
        yield


@pytest.fixture
def run(site: Site) -> Iterator[str]:
    """A running one, with three events."""
    made = site.submit()
    site.begin(made).events(step("pool", 1), step("pool", 2)).events(step("pool", 3))
    site.change(made, state="running", started=1.0)
    yield made
    site.change(made, state="done", ended=site.service.clock())


@contextmanager
def opened(site: Site, address: str, run: str, who: Person | None = None, **headers: str) -> Iterator[httpx2.Response]:
    """A stream."""
    given = (who or site.people.viewer).headers | headers
    with (
        httpx2.Client(timeout=60) as client,
        client.stream("GET", f"{address}/api/v1/runs/{run}/events", headers=given) as one,
    ):
        yield one


def sent(lines: Iterator[str], until: Callable[[list[Sent]], bool] = lambda _: False) -> list[Sent]:
    """(name, id, data) until a condition holds or the stream ends."""
    found: list[Sent] = []
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            found.append((fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"])))
            fields = {}
            if until(found):
                break
    return found


def ids(found: list[Sent]) -> list[str]:
    return [id for _, id, _ in found if id]


# --- pages ------------------------------------------------------------------------------------------------------------


def test_pages_of_events_follow_one_another(site: Site, run: str) -> None:
    first = site.ask("GET", f"runs/{run}/events?limit=2", headers=JSON).json()
    assert [(one["id"], one["event"], one["data"]["rows"]) for one in first["items"]] == [
        ("1:1", "step", 1), ("1:2", "step", 2),
    ]  # fmt: skip
    second = site.ask("GET", f"runs/{run}/events?limit=2&after={first['next']}", headers=JSON).json()
    assert [one["id"] for one in second["items"]] == ["2:1"]
    third = site.ask("GET", f"runs/{run}/events", params={"after": second["next"]}, headers=JSON).json()
    assert third["items"] == [] and third["next"], "it is running"


def test_pages_continue_from_attempt_to_attempt(site: Site, run: str) -> None:
    site.begin(run, 2).events(step("pool", 7))
    site.change(run, attempt=2, state="done", ended=1.0)
    page = site.ask("GET", f"runs/{run}/events?after=1:1", headers=JSON).json()
    assert [one["id"] for one in page["items"]] == ["1:2", "2:1", "1000001:1"] and page["next"] is None
    assert [one["id"] for one in site.ask("GET", f"runs/{run}/events", headers=JSON).json()["items"]] == ["1000001:1"]
    answer = site.ask("GET", f"runs/{run}/events?after=x", headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    later = site.ask("GET", f"runs/{run}/events?after=3000001:1", headers=JSON).json()
    assert later == {"items": [], "next": None}  # the form of an id, of an attempt that there is not


def test_a_run_that_has_not_begun_has_no_events(site: Site) -> None:
    run = site.submit()
    assert site.ask("GET", f"runs/{run}/events", headers=JSON).json()["items"] == []
    assert site.ask("GET", f"runs/{run}/logs").json()["items"] == []
    site.change(run, state="done")


def test_logs_are_read_from_the_end_or_from_the_beginning(site: Site, run: str) -> None:
    record = site.begin("log-run")
    record.attempt = f"{run}-1"
    lines = [{"time": 1.7e9 + number, "message": f"line {number}", "stage": "pool"} for number in range(6)]
    record.logs(*lines[:4]).logs({**lines[4], "level": "error", "traceback": "T"}, lines[5], number=2)
    newest = site.ask("GET", f"runs/{run}/logs").json()["items"]
    assert [line["message"] for line in newest] == [f"line {number}" for number in range(6)]
    two = site.ask("GET", f"runs/{run}/logs?limit=2").json()
    assert [line["message"] for line in two["items"]] == ["line 4", "line 5"]
    first = site.ask("GET", f"runs/{run}/logs?limit=4&after=").json()
    assert [line["message"] for line in first["items"]] == [f"line {number}" for number in range(4)]
    rest = site.ask("GET", f"runs/{run}/logs", params={"after": first["next"]}).json()
    assert [line["message"] for line in rest["items"]] == ["line 4", "line 5"] and rest["next"]
    [error] = site.ask("GET", f"runs/{run}/logs?level=error&stage=pool").json()["items"]
    assert (error["message"], error["traceback"], error["worker"]) == ("line 4", "T", "driver")
    assert site.ask("GET", f"runs/{run}/logs?stage=../../other").json()["items"] == []
    assert site.ask("GET", f"runs/{run}/logs?attempt=2").status_code == 404
    assert site.ask("GET", f"runs/{run}/logs?after=../x").json()["code"] == "invalid"


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_tells_a_run_to_its_end(site: Site, address: str, run: str) -> None:
    with opened(site, address, run) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no" and answer.headers["cache-control"] == "no-store"
        lines = answer.iter_lines()
        first = sent(lines, lambda found: len(ids(found)) == 3)
        assert first[0][0] == "state" and first[0][2]["state"] == "running"
        assert ids(first) == ["1:1", "1:2", "2:1"]
        site.change(run, state="done", reason="", ended=1.0)
        rest = sent(lines)
    assert [name for name, _, _ in rest] == ["state", "end"] and rest[-1][2]["state"] == "done"


@pytest.mark.parametrize(("last", "expected"), [("1:2", ["2:1"]), ("null", ALL), ("0:0", ALL)])
def test_a_stream_continues_after_the_last_event(
    site: Site, address: str, run: str, last: str, expected: list[str]
) -> None:
    with opened(site, address, run, **{"Last-Event-ID": last}) as answer:
        found = sent(answer.iter_lines(), lambda found: len(ids(found)) == len(expected))
    assert ids(found) == expected


def test_streams_of_a_token_are_limited(site: Site, address: str, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = site.service.settings.model_copy(update={"limits": Limits(streams=1)})
    monkeypatch.setattr(site.service.watch, "settings", settings)
    with opened(site, address, run) as first:
        lines = first.iter_lines()  # its end would close the connection
        sent(lines, lambda found: len(found) == 1)
        with opened(site, address, run) as second:
            second.read()
            assert (second.status_code, second.json()["code"]) == (429, "too_many")
        with opened(site, address, run, site.people.operator) as other:
            assert other.status_code == 200
    wait(lambda: site.service.watch.open == 0)


def test_a_client_that_goes_away_leaves_nothing_behind(
    site: Site, address: str, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = address.removeprefix("http://").partition(":")
    for _ in range(3):
        with closing(socket.create_connection((host, int(port)))) as connection:
            token = site.people.viewer.headers["Authorization"]
            connection.sendall(
                f"GET /api/v1/runs/{run}/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: {token}\r\n\r\n".encode()
            )
            assert connection.recv(100)
    wait(lambda: site.service.watch.open == 0)
    assert "Exception" not in caplog.text


def test_a_revoked_token_ends_its_stream(site: Site, address: str, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curate.service.watch.tail.CHECK_SECONDS", 0.0)
    made = site.ask("POST", "users/viewer/tokens", site.people.admin, json={}).json()
    who = Person(site.people.viewer.principal, made["token"])
    with opened(site, address, run, who) as answer:
        lines = answer.iter_lines()
        sent(lines, lambda found: len(ids(found)) == 3)
        site.ask("DELETE", f"tokens/{made['id']}", site.people.admin)
        assert sent(lines) == []
    with opened(site, address, run, who) as again:
        assert again.status_code == 401


def test_a_stream_of_nothing_is_a_problem(site: Site, address: str) -> None:
    for path, status in (("none", 404), ("../x", 404)):
        with opened(site, address, path) as answer:
            answer.read()
            assert (answer.status_code, answer.json()["code"]) == (status, "not_found")


def wait(until: Callable[[], bool]) -> None:
    ended = threading.Event()
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        ended.wait(0.02)
