"""How OpenAI-compatible servers say no, with any status: an empty account, a filter of contents, an error within an
answer. Codes count before messages, and what a message quotes does not count: it may be the prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from curate.core import finish

NO_MONEY = re.compile(
    r"insufficient_?(?:user_)?(?:quota|balance|funds|credit)|current_quota|billing|arrear|budget_exceeded|payment", re.I
)
"""Codes of an account without money."""
NO_MONEY_TEXT = re.compile(
    r"insufficient (?:quota|balance|funds|credits?)|exceeded your current quota|(?:out of|not enough) credits?"
    r"|credit (?:balance|limit)|billing (?:hard limit|not active)|account.{0,60}(?:deactivated|overdue|suspended)"
    r"|spending limit|in arrears|budget has been exceeded|欠费|余额不足",
    re.I,
)
LATER = re.compile(r"retry(?:ing)? (?:in|after)|try again in|retry_?delay|per (?:minute|second|hour|day)", re.I)
"""A limit of requests, which services also call a quota."""
FILTERED = re.compile(
    r"content[_ -]?(?:filter|polic|management polic|moderation|exists[_ ]risk|violat|safety|block)|\bmoderation\b"
    r"|inappropriate|prohibited|unsafe|harmful|nsfw|(?<!case[- ])sensitive|\bflagged\b|guardrail|invalid_prompt"
    r"|safety[_ ](?:system|filter|settings|policy|check)|usage (?:guideline|polic)|responsible ?ai|data_?inspection"
    r"|敏感|不安全|违规",
    re.I,
)
"""A filter of the server rejects what a request contains."""
NOT_FILTERED = (401, 402, 404, 408, 413, 425, 429, 503, 504, 529)
"""Statuses that are about the account, the model or the load."""
_UNKNOWN = r"(?:unsupported|unrecognized|unknown|unexpected|extra|not (?:supported|permitted|compatible))"
_FIELD = r"\b(max_tokens|seed|temperature|top_p)\b"
UNKNOWN_FIELD = re.compile(f"{_UNKNOWN}.{{0,200}}?{_FIELD}|{_FIELD}.{{0,80}}?{_UNKNOWN}", re.I | re.S)
SETTINGS = {
    "max_tokens": "token_limit: max_completion_tokens", "seed": "seed: false",
    "temperature": "temperature: null in the prompt's sampling", "top_p": "top_p: null in the prompt's sampling",
}  # fmt: skip
"""Field that a server does not know -> the setting of the endpoint, or of the prompt."""
STATUSES = {
    "rate limit": 429, "too many requests": 429, "quota": 429, "invalid request": 400, "bad request": 400,
    "authentication": 401, "permission": 403, "not found": 404, "overloaded": 503, "unavailable": 503, "timeout": 504,
}  # fmt: skip
"""Part of an error's codes or message -> the status that it stands for; others are 500."""
_QUOTED = re.compile(r"(?<!\w)(['\"`]).*?\1(?!\w)|\[.*\]|\{.*\}", re.S)


def has_no_money(status: int, body: bytes, waits: bool) -> bool:
    """waits: whether the answer says when to retry."""
    codes, message = said(body)
    later = waits or status not in (400, 402, 403, 412, 429, 500) or LATER.search(message)
    return bool(NO_MONEY.search(codes) or (not later and NO_MONEY_TEXT.search(message)))


def is_filtered(status: int, body: bytes) -> bool:
    return status >= 400 and status not in NOT_FILTERED and bool(FILTERED.search(" ".join(said(body))))


def said(body: bytes) -> tuple[str, str]:
    """(codes, message without quotations) of an error. Pages of proxies have none."""
    try:
        found = json.loads(body)
    except ValueError:
        return "", ""
    found = found[0] if isinstance(found, list) and found else found
    error = (found.get("error") or found.get("base_resp") or found) if isinstance(found, Mapping) else None
    if not isinstance(error, Mapping):
        return "", _plain(error)
    inner = error.get("innererror") or error.get("inner_error") or error.get("promptFeedback") or {}
    codes = [error.get(name) for name in ("code", "type", "status", "status_code")]
    codes += [inner.get("code"), inner.get("blockReason")] if isinstance(inner, Mapping) else []
    message = next((error[name] for name in ("message", "status_msg", "msg", "detail") if error.get(name)), "")
    return " ".join(str(code) for code in codes if code is not None), _plain(message)


def _plain(message: object) -> str:
    return _QUOTED.sub(" ", message)[:1000] if isinstance(message, str) else ""


def error_in(answer: Any, chat: bool) -> tuple[int, bytes] | None:
    """(status, body) of the error that a server answered with status 200, in place of choices or in the first one.
    chat: whether an answer without a message is an error."""
    found = answer[0] if isinstance(answer, list) and answer else answer
    found = found if isinstance(found, Mapping) else {}
    first = _first(found)
    error = first.get("error") or (None if first else found.get("error") or found.get("base_resp"))
    if error or (not first and found.get("object") == "error"):
        body = json.dumps({"error": error or found}, ensure_ascii=False).encode()
        return _status(body), body
    if finish.kind_of(first.get("finish_reason")) == finish.UNFINISHED or (
        chat and not isinstance(first.get("message"), Mapping)
    ):
        return 502, json.dumps(answer, ensure_ascii=False).encode()
    return None


def _first(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}


def _status(body: bytes) -> int:
    codes, message = said(body)
    if (number := re.search(r"\b[45]\d\d\b", codes)) is not None:
        return int(number[0])
    text = f"{codes} {message}".lower().replace("_", " ")
    return next((status for part, status in STATUSES.items() if part in text), 500)


def setting_of(text: str) -> str | None:
    """The setting of an endpoint whose server does not know a field that every request has."""
    found = UNKNOWN_FIELD.search(text)
    return SETTINGS[(found[1] or found[2]).lower()] if found else None


def note_of(answer: Mapping[str, Any]) -> str | None:
    """What people should know about an answer, once."""
    first = _first(answer)
    reason, message = first.get("finish_reason"), first.get("message")
    kind, message = finish.kind_of(reason), message if isinstance(message, Mapping) else {}
    if not message.get("content") and (message.get("reasoning") or message.get("reasoning_content")):
        if kind == finish.LENGTH:
            return "reasoning used up max_tokens, so that answers have no text; raise it, or let the model think less"
        return "answers have reasoning and no text; check the server's parser of reasoning"
    unknown = f"answers end for the unknown reason {str(reason)[:40]!r}; their texts are kept"
    return unknown if kind == finish.UNKNOWN else None
