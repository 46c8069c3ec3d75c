"""AsyncMaps: the requests they send, how often, and rows without an answer."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from curate.core.errors import CurateError
from curate.engine.passes import async_map
from curate.engine.passes.decode import ByteBudget
from curate.engine.requests import http
from curate.engine.run import run
from curate.engine.state import Options
from tests.engine import toys, workspaces
from tests.engine.asks import Answered, AskTwice, Loose, Say, See, Stuck, answer_rows, ask, go, segments
from tests.servers.scripted import Endpoint

# --- answers ----------------------------------------------------------------------------------------------------------


def test_every_row_is_requested_once_in_all_runs(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    result = go(workspace, Say(url=script.url), rows=50, shard_rows=20)
    assert [row["said"] for row in answer_rows(workspace)] == sorted(f"said picture {n}" for n in range(50))
    assert script.stats()["texts"] == {f"picture {n}": 1 for n in range(50)}
    counts = result.counts["stage_1"]
    assert (counts.computed, counts.requests, result.ledger["stage_1"].after) == (50, 50, 50)
    assert go(workspace, Say(url=script.url), rows=50, shard_rows=20).reused["stage_1"]
    assert script.stats()["requests"] == 50
    assert not segments(workspace)


def test_another_pool_finds_the_answers(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    go(workspace, Say(url=script.url), rows=30)
    result = go(workspace, Say(url=script.url), namespace="other", rows=40, shard_rows=7)
    assert script.stats()["requests"] == 40
    assert (result.counts["stage_1"].copied, result.counts["stage_1"].computed) == (30, 10)


def test_equal_requests_of_a_unit_are_sent_once(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    result = go(workspace, Say(url=script.url, modulo=5), rows=40, shard_rows=40)
    assert script.stats()["texts"] == {f"picture {n}": 1 for n in range(5)}
    assert result.ledger["stage_1"].after == 40
    assert [row["said"] for row in answer_rows(workspace)] == sorted(f"said picture {n % 5}" for n in range(40))


def test_images_are_sent(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    result = go(workspace, See(url=script.url), rows=24, shard_rows=12, broken=11)
    told = script.stats()
    assert told["requests"] == 24 and told["bytes"] > 24 * len(toys.image(1))
    assert result.ledger["stage_1"].after == 24  # nothing is decoded here: the endpoint decides what an image is


def test_max_in_flight_bounds_concurrent_requests(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script(latency_seconds=0.02)
    go(workspace, Say(url=script.url, max_in_flight=3), rows=60, shard_rows=20)
    assert script.stats()["most"] <= 3


def test_all_slots_are_in_use_at_once(workspace: Path, endpoint: Endpoint) -> None:
    """How busy they are over time, `bench/engine/async_map.py` says."""
    script = endpoint.script(latency_seconds=0.2, slots=32)
    go(workspace, Say(url=script.url), rows=320, shard_rows=80)
    told = script.stats()
    assert told["requests"] == 320 and told["most"] >= 32


def test_rows_wait_for_their_answers_while_there_is_no_room(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There is room for three images at once: further requests are made and wait. The filter downstream does not take
    their rows to be without an answer."""
    script = endpoint.script(latency_seconds=0.1)
    stages, options = (See(url=script.url), Answered()), Options()
    source = {"rows": 60, "shard_rows": 30}
    run(toys.chain(*stages, **source), str(tmp_path / "unhindered"), options=options)
    monkeypatch.setattr(async_map, "BUDGET", ByteBudget(3 * (len(toys.image(1)) + 16)))
    monkeypatch.setattr(async_map, "LOOK_SECONDS", 0.01)
    result = run(toys.chain(*stages, **source), str(workspace), options=options)
    asked, told = result.ledger["stage_1"], result.ledger["stage_2"]
    assert (asked.before, asked.after, told.before, told.after) == (60, 60, 60, 60) and not told.rejected
    assert workspaces.facts(workspace) == workspaces.facts(tmp_path / "unhindered")


# --- rows without an answer -------------------------------------------------------------------------------------------


def test_rows_without_a_request(workspace: Path, endpoint: Endpoint) -> None:
    """None needs no answer: the row is done. A Reject makes it unusable."""
    script = endpoint.script()
    result = go(workspace, Say(url=script.url, silent=(1, 2), refused=(3,)), rows=10)
    assert script.stats()["requests"] == 7
    assert (result.ledger["stage_1"].after, result.ledger["stage_1"].unusable) == (9, {"not_asked": 1})
    assert sum(row["said"] is None and row["_status"] == 0 for row in answer_rows(workspace)) == 2


AGAIN: dict[str, dict[str, Any]] = {
    "http_408": {"status": 408},
    "http_409": {"status": 409},
    "http_425": {"status": 425},
    "http_429": {"status": 429, "headers": {"Retry-After": "0"}},
    "http_500": {"status": 500},
    "http_503": {"status": 503, "body": "busy"},
    "not_json": {"status": 200, "body": "<html>"},
    "reset": {"do": "reset"},
    "timeout": {"do": "stall"},
}


def test_what_may_be_over_later_is_tried_again(workspace: Path, endpoint: Endpoint) -> None:
    """Each kind of failure twice; then there is an answer."""
    faults = [fault | {"text": f"picture {n}", "times": 2} for n, fault in enumerate(AGAIN.values())]
    script = endpoint.script(faults=faults)
    result = go(workspace, Say(url=script.url, attempts=3, timeout_seconds=2.0), rows=20)
    told = script.stats()
    assert result.ledger["stage_1"].after == 20 and result.counts["stage_1"].requests == told["requests"]
    assert told["texts"] == {f"picture {n}": 3 if n < len(AGAIN) else 1 for n in range(20)}


def test_after_the_last_attempt_the_row_is_in_error(workspace: Path, endpoint: Endpoint) -> None:
    """The reason says why. `curate retry` asks again, a run does not."""
    faults = [fault | {"text": f"picture {n}"} for n, fault in enumerate(AGAIN.values())]
    script = endpoint.script(faults=faults)
    stage = Say(url=script.url, attempts=2, timeout_seconds=2.0)
    result = go(workspace, stage, rows=20)
    assert result.ledger["stage_1"].error == dict.fromkeys(AGAIN, 1) and result.ledger["stage_1"].after == 11
    assert go(workspace, stage, rows=20).counts["stage_1"].requests == 0
    assert script.stats()["texts"]["picture 0"] == 2
    script.stats({})
    result = go(workspace, stage, Options(retry={"stage_1": ()}), rows=20)
    assert result.ledger["stage_1"].after == 20 and script.stats()["requests"] == len(AGAIN)


def test_an_endpoint_that_does_not_listen(workspace: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        result = go(workspace, Say(url=f"http://127.0.0.1:{closed.getsockname()[1]}", attempts=2), rows=3)
    assert result.ledger["stage_1"].error == {"connect": 3}


def test_retry_after_is_kept_to(workspace: Path, endpoint: Endpoint) -> None:
    fault = {"text": "picture 0", "times": 1, "status": 429, "headers": {"retry-after-ms": "400"}}
    script = endpoint.script(faults=[fault])
    go(workspace, Say(url=script.url), rows=1)
    first, second = script.stats()["times"]
    assert second - first >= 0.4


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_rejected_request_makes_its_row_unusable(workspace: Path, endpoint: Endpoint, status: int) -> None:
    script = endpoint.script(faults=[{"text": "picture 3", "status": status}])
    result = go(workspace, Say(url=script.url), rows=10)
    assert result.ledger["stage_1"].unusable == {f"refused_{status}": 1}
    assert script.stats()["texts"]["picture 3"] == 1


@pytest.mark.parametrize(("status", "remedy"), [(401, "check the key"), (403, "the key allows"), (404, "the URL")])
def test_an_error_of_every_request_ends_the_run(workspace: Path, endpoint: Endpoint, status: int, remedy: str) -> None:
    """In one line, with the stage's name. What was answered before is kept."""
    script = endpoint.script(faults=[{"text": "picture 9", "status": status, "body": "no\nentry"}])
    with pytest.raises(CurateError, match=rf"stage_1: {script.url}: {status} .*\(no entry\).*{remedy}") as raised:
        go(workspace, Say(url=script.url, max_in_flight=1), rows=20)
    assert "\n" not in str(raised.value)
    script.stats({})
    go(workspace, Say(url=script.url), rows=20)
    assert script.stats()["requests"] <= 11


def test_a_redirect_is_not_followed(workspace: Path, endpoint: Endpoint) -> None:
    """It would take the key along."""
    fault = {"status": 307, "headers": {"Location": "http://elsewhere.example/v1"}}
    with pytest.raises(CurateError, match=r"redirects to 'http://elsewhere\.example/v1'"):
        go(workspace, Say(url=endpoint.script(faults=[fault]).url), rows=1)


def test_an_invalid_url(workspace: Path) -> None:
    with pytest.raises(CurateError, match="'nowhere' is not a valid URL"):
        go(workspace, Say(url="nowhere"), rows=1)


def test_an_answer_that_does_not_fit_the_schema_is_an_error_of_its_row(workspace: Path, endpoint: Endpoint) -> None:
    result = go(workspace, Loose(url=endpoint.script().url), rows=20)
    assert (result.ledger["stage_1"].after, result.ledger["stage_1"].error) == (18, {"bad_columns": 2})


def test_an_answer_that_is_too_large(workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_BYTES", 1000)
    script = endpoint.script(faults=[{"text": "picture 1", "status": 200, "body": '"' + "x" * 1000 + '"'}])
    assert go(workspace, Say(url=script.url), rows=3).ledger["stage_1"].error == {"answer_too_large": 1}


def test_a_unit_that_waits_for_its_endpoint_does_not_hang(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing ends for longer than the deadline: every request waits until the endpoint may be asked again."""
    monkeypatch.setattr(async_map, "LOOK_SECONDS", 0.05)
    busy = {"times": 1, "status": 429, "headers": {"Retry-After": "3"}}
    script = endpoint.script(faults=[busy])
    result = go(workspace, ask(script.base_url, max_in_flight=1), Options(deadline=1.0), rows=20, shard_rows=20)
    assert result.ledger["stage_1"].after == 20 and script.stats()["requests"] == 21


def test_stages_share_the_pool_of_an_endpoint(workspace: Path, endpoint: Endpoint) -> None:
    """And their units do: together they have no more in flight than one may."""
    script = endpoint.script(latency_seconds=0.02)
    first = ask(script.base_url, max_in_flight=4)
    second = AskTwice(endpoints=first.endpoints, max_in_flight=4)
    run(toys.chain(first, second, rows=80, shard_rows=20), str(workspace))
    told = script.stats()
    assert told["requests"] == 160 and told["most"] <= 4


@pytest.mark.parametrize("stuck", [(4,), pytest.param((4, 7), marks=pytest.mark.long)])
def test_a_row_whose_answer_never_ends_is_named(workspace: Path, endpoint: Endpoint, stuck: tuple[int, ...]) -> None:
    """The unit ends no batch until the deadline. It is retried without the row; if there are several, with each row
    alone until the stuck rows are known. Each other row is requested once."""
    script = endpoint.script()
    stage = Stuck(url=script.url, stuck=stuck, flush_seconds=0.1)
    result = go(workspace, stage, Options(failure_budget=1.0, deadline=5.0), rows=20, shard_rows=20)
    assert result.ledger["stage_1"].error == {"hung": len(stuck)}
    assert result.ledger["stage_1"].after == script.stats()["requests"] == 20 - len(stuck)
