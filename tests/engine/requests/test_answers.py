"""What errors of servers mean, as public reports quote them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from curate.core import finish
from curate.engine.requests.answers import error_in, has_no_money, is_filtered, setting_of


def body(message: str = "", **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, **more}}, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("status", "said", "waits"),
    [
        (429, body("You exceeded your current quota, check your plan", code="insufficient_quota"), True),
        (429, body("Your account is suspended, check billing", type="exceeded_current_quota_error"), False),
        (429, body("您的账户已欠费，请充值后重试", code="1113"), False),
        (429, body("Credit limit exceeded"), False),
        (429, body("Limit per day reached", code="insufficient_quota"), False),
        (400, body("Budget has been exceeded! Max budget: 10.0", type="budget_exceeded"), False),
        (412, body("Account x is suspended, possibly due to reaching the monthly spending limit"), False),
        (400, body("Access denied, check your account", code="Arrearage"), False),
        (500, json.dumps({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}).encode(), False),
    ],
)
def test_an_account_without_money(status: int, said: bytes, waits: bool) -> None:
    assert has_no_money(status, said, waits)


@pytest.mark.parametrize(
    ("status", "said", "waits"),
    [
        (429, body("Rate limit reached, limit 3 requests per minute; see /account/billing to raise it"), False),
        (429, body("You exceeded your current quota. Please retry in 42s.", status="RESOURCE_EXHAUSTED"), False),
        (429, body("You exceeded your current quota"), True),
        (400, body("Invalid image. messages: [{'content': 'A sign reading insufficient funds'}]"), False),
        (429, body("busy: request 'A sign reading insufficient funds' queued"), False),
        (503, body("insufficient balance of shards"), False),
        (403, body("insufficient role: you need role content-management"), False),
    ],
)
def test_other_errors_are_not_about_money(status: int, said: bytes, waits: bool) -> None:
    assert not has_no_money(status, said, waits) and not is_filtered(status, said)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, body("The response was filtered due to Azure OpenAI's content management policy", code="content_filter")),
        (400, body("Output data may contain inappropriate content.", code="data_inspection_failed")),
        (400, body("Content Exists Risk", type="invalid_request_error")),
        (400, body("Invalid prompt: your prompt was flagged as violating our usage policy", code="invalid_prompt")),
        (400, body("系统检测到输入或生成内容可能包含不安全或敏感内容", code="1301")),
        (400, body("the content of user is sensitive", code="336003")),
        (400, body("litellm.ContentPolicyViolationError: {'error': {'code': 'x'}}")),
        (403, body("Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_CSAM")),
        (403, body("Your input was flagged", metadata={"reasons": ["violence"]})),
        (500, body("Your request was rejected as a result of our safety system")),
        (451, body("", innererror={"code": "ResponsibleAIPolicyViolation"})),
        (502, b'{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}'),
    ],
)
def test_a_filter(status: int, said: bytes) -> None:
    assert is_filtered(status, said) and not has_no_money(status, said, waits=False)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, b'<meta name="generator" content="Joomla! - Open Source Content Management" />'),
        (404, body("The model does not exist. Did you mean omni-moderation-latest?")),
        (401, body("Invalid key. See our content policy")),
        (403, b"<html>Blocked by web content filter policy</html>"),
        (503, body("Content moderation service is unavailable, please retry later")),
        (429, body("Rate limit reached for content moderation. Please try again in 1s.")),
        (422, b'{"detail": [{"type": "value_error", "input": "Avoid unsafe content"}]}'),
        (400, body("Invalid image: 'Drink in moderation'")),
        (400, body("Names of parameters are case-sensitive")),
        (400, b"[]"), (500, b"null"), (500, b"3"), (500, b'{"error": null}'), (500, b'{"error": [1]}'),
    ],
)  # fmt: skip
def test_other_errors_do_not_name_a_filter(status: int, said: bytes) -> None:
    assert not is_filtered(status, said)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"error": {"message": "x", "code": 429}}, 429),
        ([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}], 429),
        ({"error": "overloaded, try again"}, 503),
        ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, 400),
        ({"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}}, 429),
        ({"choices": []}, 502),
        ({"choices": None}, 502),
        ({"detail": "Internal Server Error"}, 502),
        ({"choices": [{"message": None}]}, 502),
        ({"choices": [{"finish_reason": "error", "message": {"content": "a"}}]}, 502),
        ({"choices": [{"error": {"code": 502, "message": "x"}, "message": {"content": ""}}]}, 502),
        ([], 502),
        (None, 502),
    ],
)
def test_an_error_within_an_answer(answer: Any, status: int) -> None:
    found = error_in(answer, chat=True)
    assert found is not None and found[0] == status


def test_no_error_within_an_answer() -> None:
    whole = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "base_resp": {"status_code": 0}}
    assert error_in(whole, chat=True) is None
    assert error_in({"data": [{"embedding": [1.0]}]}, chat=False) is None


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (None, finish.USUAL), ("stop", finish.USUAL), ("STOP", finish.USUAL), ("eos", finish.USUAL),
        ("length", finish.LENGTH), ("model_context_window_exceeded", finish.LENGTH), ("MAX_TOKENS", finish.LENGTH),
        ("content_filter: RECITATION", finish.WITHHELD), ("content_filtered", finish.WITHHELD),
        ("SPII", finish.WITHHELD), ("guardrail_intervened", finish.WITHHELD), ("SAFETY", finish.WITHHELD),
        ("insufficient_system_resource", finish.UNFINISHED), ("network_error", finish.UNFINISHED),
        ("ERROR", finish.UNFINISHED), ("abort", finish.UNFINISHED), ("other", finish.UNKNOWN), (3, finish.UNKNOWN),
    ],
)  # fmt: skip
def test_finish_reasons(reason: Any, kind: str) -> None:
    assert finish.kind_of(reason) == kind


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("litellm: Error code: 400 - {'error': {'message': \"Unsupported parameter: 'max_tokens'\"}}", "token_limit"),
        ("Setting 'max_tokens' is not compatible with this model", "token_limit"),
        ('{"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"]}]}', "seed"),
        ("property 'seed' is unsupported", "seed"),
        ("max_tokens must be at most 4096", None),
    ],
)
def test_a_field_that_a_server_does_not_know(text: str, setting: str | None) -> None:
    found = setting_of(text)
    assert found is None if setting is None else found is not None and found.startswith(setting)
