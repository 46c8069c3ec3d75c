"""The pool of an endpoint: what each failure leads to, as the endpoint's log shows it."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack
from typing import Any

import pytest

from curate.core.errors import CurateError
from curate.engine.requests import breaker, client, deadline, http, pool
from curate.engine.requests.client import Requester
from tests.engine.asks import ask
from tests.engine.requests.conftest import Send, reasons
from tests.servers import fragile
from tests.servers import proxy as proxies
from tests.servers.proxy import Fault, Proxy, retry_after
from tests.servers.scripted import Endpoint, Scripted


@pytest.fixture
def proxied() -> Iterator[Callable[[Scripted], Proxy]]:
    with ExitStack() as running:
        yield lambda script: running.enter_context(proxies.started(script.base_url))


def times(script: Scripted) -> list[float]:
    return [line["time"] for line in script.log()]


def paced(times: list[float], began: float, per_second: float, workers: int = 1) -> bool:
    """Whether requests came at no higher rate since `began`. They may be late."""
    return all(
        number <= workers + per_second * (time - began + 0.1 * workers) for number, time in enumerate(sorted(times), 1)
    )


# --- URLs -------------------------------------------------------------------------------------------------------------


def test_requests_go_to_all_urls(endpoint: Endpoint, send: Send) -> None:
    """To the least loaded one: each gets about as many."""
    one, two = endpoint.script(latency_seconds=0.02), endpoint.script(latency_seconds=0.02)
    assert reasons(send(ask(one.base_url, two.base_url), 200)) == [None] * 200
    counts = [one.stats()["requests"], two.stats()["requests"]]
    assert sum(counts) == 200 and min(counts) >= 80


def test_a_slow_url_gets_fewer_requests(endpoint: Endpoint, send: Send) -> None:
    slow, fast = endpoint.script(latency_seconds=2.0), endpoint.script(latency_seconds=0.02)
    send(ask(slow.base_url, fast.base_url, max_in_flight=16), 200)
    assert fast.stats()["requests"] > 3 * slow.stats()["requests"]


def test_one_of_two_dies(endpoint: Endpoint, send: Send, proxied: Any) -> None:
    """Every row has its answer, from the other one. Those in flight there are asked once more; then it is asked now and
    then only, whether it is back."""
    one, two = endpoint.script(latency_seconds=0.05), endpoint.script(latency_seconds=0.05)
    dying, staying = proxied(one), proxied(two)
    stage = ask(dying.base_url, staying.base_url)
    requester = Requester(stage)
    futures = [requester.send(f"picture {n}") for n in range(300)]
    futures[20].result(timeout=60)
    dying.die()
    assert [future.result(timeout=60).reason for future in futures] == [None] * 300
    answered = one.stats()["answered"] + two.stats()["answered"]
    assert 300 <= answered <= 340 and two.stats()["answered"] > one.stats()["answered"]
    dying.come_back()
    seen = one.stats()["requests"]
    deadline = time.monotonic() + 120.0
    while one.stats()["requests"] == seen:  # its probe comes after a pause
        assert reasons(send(stage, 20)) == [None] * 20 and time.monotonic() < deadline
    requester.close()


def test_an_endpoint_goes_and_returns(endpoint: Endpoint, send: Send, proxied: Any) -> None:
    """Requests wait for it, and waiting uses up no attempts."""
    script = endpoint.script(latency_seconds=0.02)
    proxy = proxied(script)
    stage = ask(proxy.base_url, patience_seconds=30.0).model_copy(update={"attempts": 1})
    assert reasons(send(stage, 5)) == [None] * 5
    proxy.die()
    requester = Requester(stage)
    futures = [requester.send(f"picture {n}") for n in range(5, 40)]
    while requester.ended < 4:  # more attempts than a row has
        assert not wait(futures, timeout=0.05, return_when=FIRST_COMPLETED).done
    assert requester.waiting
    proxy.come_back()
    assert [future.result(timeout=60).reason for future in futures] == [None] * 35
    assert set(script.stats()["texts"].values()) == {1}
    requester.close()


def test_a_url_that_dies_repeatedly(endpoint: Endpoint, send: Send, proxied: Any) -> None:
    """It is asked whenever it is there, and no row is lost or asked twice for it."""
    script = endpoint.script(latency_seconds=0.02)
    proxy = proxied(script)
    stage = ask(proxy.base_url, patience_seconds=30.0).model_copy(update={"attempts": 1})
    for round in range(4):
        assert reasons(send(stage, 5, first=20 * round)) == [None] * 5
        proxy.die()
        requester = Requester(stage)
        futures = [requester.send(f"picture {n}") for n in range(20 * round + 5, 20 * round + 20)]
        while requester.ended < 3:
            assert not wait(futures, timeout=0.05, return_when=FIRST_COMPLETED).done
        proxy.come_back()
        assert [future.result(timeout=60).reason for future in futures] == [None] * 15
        requester.close()
    assert set(script.stats()["texts"].values()) == {1}


def test_an_endpoint_that_does_not_return_ends_the_run(send: Send) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        stage = ask(f"http://127.0.0.1:{closed.getsockname()[1]}/v1", patience_seconds=0.7)
        found = send(stage, 10)
    assert all(answered.fatal for answered in found)
    text = str(found[0].fatal)
    assert re.match(r"endpoint local: none of its URLs answers since \d+ s \(last: connect: ", text)
    assert text.endswith("start it and run the same command") and "\n" not in text


def test_even_a_single_request_waits_for_an_endpoint_that_is_down(send: Send) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        (found,) = send(ask(f"http://127.0.0.1:{closed.getsockname()[1]}/v1", patience_seconds=0.3), 1)
    assert "none of its URLs answers" in str(found.fatal)


def test_patience_counts_only_while_requests_wait(
    endpoint: Endpoint, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL that failed long ago is asked again, before the run ends."""
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(pool, "FALL_SECONDS", 0.05)
    script = endpoint.script(faults=[{"status": 500, "times": 3}])
    stage = ask(script.base_url, patience_seconds=60.0).model_copy(update={"attempts": 1})
    assert reasons(send(stage, 3)) == ["http_500"] * 3
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 1000.0)
    assert reasons(send(stage, 5, first=3)) == [None] * 5


# --- failures ---------------------------------------------------------------------------------------------------------


def test_one_request_that_always_fails_is_at_fault(endpoint: Endpoint, send: Send) -> None:
    """Twice, with answers to others: the endpoint rejects it. The others are answered once and do not wait."""
    script = endpoint.script(faults=[{"text": "picture 7", "status": 500, "body": "cannot decode"}])
    found = send(ask(script.base_url, max_in_flight=4), 60)
    assert reasons(found) == [None] * 7 + ["endpoint_refuses"] + [None] * 52
    assert "cannot decode" in found[7].message
    assert script.stats()["texts"] == {f"picture {n}": 2 if n == 7 else 1 for n in range(60)}


def test_it_does_not_stop_the_endpoint_even_if_it_is_alone(endpoint: Endpoint, send: Send) -> None:
    """`curate retry` may send nothing else. It ends after its attempts, and the next request is sent at once."""
    script = endpoint.script(faults=[{"text": "picture 7", "status": 500}])
    stage = ask(script.base_url)
    assert reasons(send(stage, 1, first=7)) == ["http_500"]
    assert script.stats()["texts"] == {"picture 7": 5}
    assert reasons(send(stage, 1)) == [None]


@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"status": 503}, {"status": 200, "body": "<html>"}, {"do": "reset"}]
)
def test_what_may_be_over_later_is_tried_again(endpoint: Endpoint, send: Send, fault: dict[str, Any]) -> None:
    script = endpoint.script(faults=[fault | {"text": "picture 3", "times": 1}])
    assert reasons(send(ask(script.base_url), 10)) == [None] * 10
    assert script.stats()["texts"] == {f"picture {n}": 2 if n == 3 else 1 for n in range(10)}


def test_all_requests_fail_for_a_while(endpoint: Endpoint, send: Send) -> None:
    """500 to everything: the breaker opens, and requests wait."""
    script = endpoint.script(latency_seconds=0.1, faults=[{"status": 500, "times": 9}])
    found = send(ask(script.base_url, max_in_flight=8, patience_seconds=60.0), 30)
    assert reasons(found) == [None] * 30
    assert script.stats()["requests"] == 39


@pytest.mark.parametrize("kind", ["seconds", "date", "ms"])
def test_retry_after_pauses_all_requests(endpoint: Endpoint, send: Send, proxied: Any, kind: str) -> None:
    script = endpoint.script()
    proxy = proxied(script)
    value = 300.0 if kind == "ms" else 2.0 if kind == "date" else 0.3
    proxy.faults.append(Fault("status", status=429, headers=retry_after(kind, value), times=1))
    found = send(ask(proxy.base_url, max_in_flight=1), 5)
    assert reasons(found) == [None] * 5
    first, second, *_ = [line["time"] for line in proxy.log]
    assert second - first >= (0.9 if kind == "date" else 0.3)  # a date has whole seconds
    assert len(proxy.log) == 6


def test_retry_after_of_one_url_leaves_the_others(endpoint: Endpoint, send: Send) -> None:
    fault = {"times": 1, "status": 429, "headers": {"Retry-After": "120"}}
    busy, free = endpoint.script(faults=[fault]), endpoint.script()
    began = time.monotonic()
    assert reasons(send(ask(busy.base_url, free.base_url), 50)) == [None] * 50
    assert time.monotonic() - began < 60.0 and busy.stats()["requests"] <= 8


def test_too_many_requests_shrink_the_window(endpoint: Endpoint, send: Send, proxied: Any) -> None:
    """429 uses up no attempts, and the number in flight adapts."""
    script = endpoint.script(latency_seconds=0.02)
    proxy = proxied(script)
    proxy.faults.append(Fault("status", status=429, every=5, times=20))
    stage = ask(proxy.base_url).model_copy(update={"attempts": 1})
    assert reasons(send(stage, 150)) == [None] * 150
    assert proxy.done["status"] == 20 and proxy.most <= 20


def test_a_slow_endpoint_does_not_stop_others_of_the_process(endpoint: Endpoint, send: Send) -> None:
    stalled, fine = endpoint.script(stall_after=0), endpoint.script()
    requester = Requester(ask(stalled.base_url, timeout_seconds=600.0).model_copy(update={"attempts": 1}))
    futures = [requester.send(f"picture {n}") for n in range(10)]
    assert reasons(send(ask(fine.base_url), 20)) == [None] * 20
    assert not any(future.done() for future in futures)
    requester.close()
    for future in futures:
        future.cancel()


def test_hung_requests_cost_their_places_and_not_the_window(
    endpoint: Endpoint, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are sent again after a time that follows from the answers, long before their time-out."""
    monkeypatch.setattr(deadline, "LEAST_SECONDS", 2.0)
    hung = range(0, 60, 6)
    stalls = [{"text": f"picture {n}", "do": "stall", "times": 1} for n in hung]
    stage = ask(endpoint.script(latency_seconds=0.02, faults=stalls).base_url, max_in_flight=16, timeout_seconds=600.0)
    found = send(stage, 200)
    assert reasons(found) == [None] * 200
    assert [n for n, answered in enumerate(found) if answered.requests > 1] == [*hung]
    assert all(answered.spend["local"].estimated == answered.requests - 1 for answered in found)
    [used] = [one for place, one in client._process.pools.items() if place[1] == stage.asks()["local"]]
    assert used.window.limit == 16 and not used.urls[0].breaker.open


def test_an_answer_without_end(endpoint: Endpoint, send: Send, proxied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_BYTES", 1 << 20)
    proxy = proxied(endpoint.script())
    proxy.faults.append(Fault("endless", text='"picture 3"', seconds=0.0))
    found = send(ask(proxy.base_url), 6)
    assert reasons(found) == [None, None, None, "answer_too_large", None, None]
    assert [answered.spend["local"].estimated for answered in found] == [0, 0, 0, 1, 0, 0]


def test_an_answer_that_is_too_slow(endpoint: Endpoint, send: Send, proxied: Any) -> None:
    proxy = proxied(endpoint.script())
    proxy.faults.append(Fault("endless", text='"picture 3"', seconds=0.05))
    stage = ask(proxy.base_url, timeout_seconds=1.5).model_copy(update={"attempts": 2})
    found = send(stage, 6)
    assert reasons(found) == [None, None, None, "timeout", None, None]
    assert proxy.done["endless"] == 2 and found[3].spend["local"].estimated == 2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("malformed", "not_json"), ("empty", "not_json"), ("cut_middle", "reset"), ("cut_after", "reset")],
)
def test_broken_answers(endpoint: Endpoint, send: Send, proxied: Any, fault: str, reason: str) -> None:
    """Once, it is asked again; always, its row is in error."""
    proxy = proxied(endpoint.script())
    proxy.faults += [Fault(fault, text='"picture 3"', times=1), Fault(fault, text='"picture 4"')]
    stage = ask(proxy.base_url).model_copy(update={"attempts": 3})
    assert reasons(send(stage, 6)) == [None, None, None, None, reason, None]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_that_is_rejected(endpoint: Endpoint, send: Send, status: int) -> None:
    """The row is in error, with the endpoint's words: `curate retry` may ask with other settings."""
    script = endpoint.script(faults=[{"text": "picture 3", "status": status, "body": "too\nlarge"}])
    found = send(ask(script.base_url), 6)
    assert reasons(found) == [None, None, None, "endpoint_refuses", None, None]
    assert f"{status}" in found[3].message and "(too large)" in found[3].message
    assert script.stats()["texts"]["picture 3"] == 1


def test_a_request_that_brings_the_server_down_is_at_fault(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in flight with it are answered; it is sent a few times."""
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 0.05)
    with fragile.started(b'"picture 7"') as server:
        found = send(ask(server.base_url, max_in_flight=8), 60)
    assert reasons(found) == [None] * 7 + ["endpoint_refuses"] + [None] * 52
    assert "server fell" in found[7].message and 2 <= server.falls <= 4
    assert server.texts.keys() == {f"picture {n}" for n in range(60) if n != 7}


# --- errors of every request ------------------------------------------------------------------------------------------


def test_the_key_is_sent_and_quoted_nowhere(endpoint: Endpoint, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKED_KEY", "sk-very-secret-1")
    echoes = {"text": "picture 3", "status": 400, "body": "you sent {authorization}"}
    script = endpoint.script(key="sk-very-secret-1", faults=[echoes])
    found = send(ask(script.base_url, key="env:ASKED_KEY"), 6)
    assert reasons(found) == [None, None, None, "endpoint_refuses", None, None]
    assert {line["authorization"] for line in script.log()} == {"Bearer sk-very-secret-1"}
    assert "you sent Bearer [env:ASKED_KEY]" in found[3].message and "very-secret" not in repr(found)


def test_a_wrong_key_ends_the_run(endpoint: Endpoint, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKED_KEY", "sk-another-2")
    script = endpoint.script(key="sk-very-secret-1")
    found = send(ask(script.base_url, key="env:ASKED_KEY", max_in_flight=1), 1)
    assert "401 Unauthorized" in str(found[0].fatal) and "check the key" in str(found[0].fatal)


@pytest.mark.parametrize("status", [400, 404])
def test_an_unknown_model_ends_the_run(endpoint: Endpoint, send: Send, status: int) -> None:
    script = endpoint.script(models=["llava"], unknown_model_status=status)
    (found,) = send(ask(script.base_url), 1)
    assert isinstance(found.fatal, CurateError) and "`scripted` does not exist" in str(found.fatal)


def test_a_redirect_to_another_host_gets_no_key(
    endpoint: Endpoint, send: Send, proxied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASKED_KEY", "sk-very-secret-1")
    other = endpoint.script()
    proxy = proxied(endpoint.script())
    proxy.faults.append(Fault("status", status=307, headers={"Location": other.url}))
    (found,) = send(ask(proxy.base_url, key="env:ASKED_KEY"), 1)
    assert "redirects to" in str(found.fatal) and other.stats()["requests"] == 0


# --- what is counted --------------------------------------------------------------------------------------------------


def test_what_is_spent_is_what_the_endpoint_reports(endpoint: Endpoint, send: Send) -> None:
    script = endpoint.script(faults=[{"text": "picture 3", "status": 503, "times": 2}])
    found = send(ask(script.base_url, price={"input": 1.0, "output": 10.0}), 20)
    told = script.stats()
    spent = [answered.spend["local"] for answered in found]
    assert sum(one.requests for one in spent) == told["requests"] == 22
    assert sum(one.prompt_tokens for one in spent) == told["prompt_tokens"]
    assert sum(one.completion_tokens for one in spent) == told["completion_tokens"]
    dollars = (told["prompt_tokens"] + 10 * told["completion_tokens"]) / 1e6
    assert sum(one.dollars or 0.0 for one in spent) == pytest.approx(dollars)
    assert not any(one.estimated for one in spent)


def test_missing_usage_is_estimated(endpoint: Endpoint, send: Send) -> None:
    script = endpoint.script(reports_usage=False)
    (found,) = send(ask(script.base_url), 1)
    spent = found.spend["local"]
    assert spent.estimated == 1 and spent.tokens == 0 and spent.dollars is None
    assert spent.estimated_prompt_tokens > 0 and spent.estimated_completion_tokens > 0


def test_a_change_of_the_model_is_one_warning(endpoint: Endpoint, send: Send, caplog: pytest.LogCaptureFixture) -> None:
    script = endpoint.script(fingerprint="fp-1")
    stage = ask(script.base_url)
    with caplog.at_level(logging.WARNING, "curate"):
        send(stage, 5)
        script.change(fingerprint="fp-2")
        send(stage, 5)
        script.change(fingerprint="fp-1")
        send(stage, 5)
    (record,) = caplog.records
    assert "'scripted' with fingerprint 'fp-1', then 'scripted' with fingerprint 'fp-2'" in record.getMessage()


def test_the_limits_of_a_process_that_is_alone(endpoint: Endpoint, send: Send) -> None:
    script, began = endpoint.script(), time.monotonic()
    send(ask(script.base_url, requests_per_minute=1200.0), 11)
    assert paced(times(script), began, 20.0)
