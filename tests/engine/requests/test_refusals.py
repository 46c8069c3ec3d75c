"""How servers of models say no: what becomes of the row, of the others, and of the run."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from curate.core.errors import CurateError
from curate.engine.requests import pool
from tests.engine.asks import ask
from tests.engine.requests.conftest import Send, reasons
from tests.servers.scripted import Endpoint


def said(message: str, **more: Any) -> str:
    return json.dumps({"error": {"message": message, **more}})


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 429, "body": said("You exceeded your current quota.", code="insufficient_quota")},
        {"status": 429, "body": said("Billing hard limit has been reached", code="billing_hard_limit_reached")},
        {"status": 200, "body": said("Insufficient balance", code=402)},
        {"status": 402, "body": "Payment Required"},
        {"status": 400, "body": said("Access denied, check your account", code="Arrearage")},
        {"status": 403, "body": said("Your credit balance is too low", type="insufficient_user_quota")},
    ],
)
def test_an_account_without_money_ends_the_run(endpoint: Endpoint, send: Send, fault: dict[str, Any]) -> None:
    script = endpoint.script(faults=[fault])
    found = send(ask(script.base_url), 4)
    assert all(isinstance(one.fatal, CurateError) and "check the account's balance" in str(one.fatal) for one in found)
    assert script.stats()["requests"] <= 4


@pytest.mark.parametrize(
    "fault",
    [
        {
            "status": 429,
            "headers": {"Retry-After": "0"},
            "body": said("You exceeded your current quota, check billing"),
        },
        {"status": 429, "body": said("You exceeded your current quota. Please retry in 1.5s.")},
        {"status": 429, "body": said("Rate limit reached for requests per minute", code="rate_limit_exceeded")},
        {"status": 200, "body": said("The engine is overloaded", code=503)},
        {"status": 200, "body": said("internal", type="timeout_error")},
        {"status": 200, "body": '{"choices": []}'},
        {"status": 200, "body": '{"object": "error", "message": "overloaded", "code": 503}'},
        {"status": 200, "body": json.dumps({"choices": [{"finish_reason": "abort", "message": {"content": "a do"}}]})},
        {
            "status": 200,
            "body": json.dumps({"choices": [{"finish_reason": "error", "error": {"code": 502, "message": "x"}}]}),
        },
    ],
)
def test_what_may_be_over_later_is_retried(endpoint: Endpoint, send: Send, fault: dict[str, Any]) -> None:
    script = endpoint.script(faults=[fault | {"text": "picture 2", "times": 2}])
    assert reasons(send(ask(script.base_url), 4)) == [None] * 4
    assert script.stats()["texts"]["picture 2"] == 3


@pytest.mark.parametrize("status", [200, 400, 403, 451, 500])
@pytest.mark.parametrize(
    "body",
    [
        said(
            "The response was filtered due to the prompt triggering our content management policy",
            code="content_filter",
        ),
        said("Input data may contain inappropriate content.", code="data_inspection_failed"),
        said("Your request was rejected as a result of our safety system", code="moderation_blocked"),
    ],
)
def test_a_filter_of_the_server_rejects_one_row(endpoint: Endpoint, send: Send, status: int, body: str) -> None:
    code = {} if status != 200 else {"code": 400}
    text = (
        body if status != 200 else json.dumps({"error": json.loads(body)["error"] | code | {"type": "content_filter"}})
    )
    script = endpoint.script(faults=[{"text": f"picture {n}", "status": status, "body": text} for n in (0, 2, 3, 4)])
    assert reasons(send(ask(script.base_url), 6)) == ["refused", None, "refused", "refused", "refused", None]
    assert script.stats()["requests"] == 6


@pytest.mark.parametrize("status", [500, 501, 502])
def test_rows_that_always_fail_do_not_stop_a_server_that_lists_its_models(
    endpoint: Endpoint,
    send: Send,
    status: int,
) -> None:
    """No other request succeeds beside them."""
    script = endpoint.script(faults=[{"text": f"picture {n}", "status": status} for n in range(4)])
    stage = ask(script.base_url, patience_seconds=0.5)
    assert reasons(send(stage, 4)) == [f"http_{status}"] * 4
    assert max(script.stats()["texts"].values()) <= 5
    assert reasons(send(stage, 2, first=4)) == [None, None]


def test_a_server_that_only_lists_its_models_ends_the_run(endpoint: Endpoint, send: Send) -> None:
    """Its engine is dead: a few rows are set aside, not all of them."""
    script = endpoint.script(faults=[{"status": 500}])
    found = send(ask(script.base_url, patience_seconds=0.5), 100)
    assert sum(one.reason == "http_500" for one in found) < 30
    ended = {str(one.fatal) for one in found if one.fatal}
    assert ended and all("none of its URLs answers since" in text for text in ended)


def test_the_log_has_what_is_waited_for(
    endpoint: Endpoint,
    send: Send,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(pool, "TELL_SECONDS", 0.3)
    script = endpoint.script(faults=[{"status": 429, "headers": {"Retry-After": "1"}, "body": "later", "times": 2}])
    send(ask(script.base_url), 2)
    told = [line.getMessage() for line in caplog.records if "no answer since" in line.getMessage()]
    assert 2 <= len(told) <= 10
    assert re.search(
        r"endpoint local: no answer since \d\d:\d\d:\d\d \(\d+ s\); waiting for Retry-After, \d s more; ", told[0]
    )
    assert "429" in told[0]


@pytest.mark.parametrize(
    ("message", "setting"),
    [
        (
            "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens'.",
            "token_limit: max_completion_tokens",
        ),
        ("Unrecognized request argument supplied: seed", "seed: false"),
        ("Unsupported value: 'temperature' does not support 0.7", "temperature: null in the prompt's sampling"),
    ],
)
def test_an_unknown_field_names_the_setting(endpoint: Endpoint, send: Send, message: str, setting: str) -> None:
    script = endpoint.script(faults=[{"status": 400, "body": said(message)}])
    [found] = send(ask(script.base_url), 1)
    assert isinstance(found.fatal, CurateError) and str(found.fatal).endswith(f"set {setting}")
