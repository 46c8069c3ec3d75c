"""Behaviours of model servers from public bug reports, as scripts of the scripted endpoint, and what becomes of a run
of eight images. `python -m bench.engine.refusals` shows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.servers.scripted import Scripted

ROWS = 8
NAME = "picture"
"""What the caption of an image begins with; its number follows."""
THREE = f"{NAME} 3"
PROMPT = {
    "name": "short", "version": 1, "image": True, "user": "Describe this image. {context}",
    "context": {"alt text": "caption"}, "sampling": {"max_tokens": 50},
}  # fmt: skip


def said(content: str | None, reason: str | None = "stop", **message: Any) -> dict[str, Any]:
    """An answer with this text."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": reason}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return {"status": 200, "body": json.dumps({"model": "m", "choices": [choice], "usage": usage})}


def error(status: int, message: str, **more: Any) -> dict[str, Any]:
    """An answer with an error; `code` in it if the status is 200."""
    return {"status": status, "body": json.dumps({"error": {"message": message, **more}})}


@dataclass(frozen=True)
class Scenario:
    faults: list[dict[str, Any]]
    expected: Mapping[str, int] | str
    """Outcome -> rows; or a part of the line with which the run ends."""
    endpoint: Mapping[str, Any] = field(default_factory=dict)
    says: str = ""
    """Part of a line that the run prints."""


ALL_OK = {"ok": ROWS}
ONE = {"ok": ROWS - 1}
SCENARIOS = {
    # --- what a model thinks ---
    "only the closing mark": Scenario([said("The user asks for a caption.</think>A dog on a beach.")], ALL_OK),
    "[THINK] marks": Scenario([said("[THINK]Hm.[/THINK]A dog on a beach.")], ALL_OK),
    "nested marks": Scenario([said("<think>a<think>b</think>c</think>A dog on a beach.")], ALL_OK),
    "an opening mark without an end": Scenario([said("<think>The user asks", None)], {"truncated": ROWS}),
    "only a mark": Scenario([said("</think>")], {"empty": ROWS}),
    "reasoning used up max_tokens": Scenario(
        [said(None, "length", reasoning_content="Hm. The user")], {"truncated": ROWS},
        says="reasoning used up max_tokens",
    ),
    "null content, reason length": Scenario([said(None, "length")], {"truncated": ROWS}),
    # --- one request that fails ---
    "500 for one row": Scenario([error(500, "CUDA error") | {"contains": THREE}], ONE | {"endpoint_refuses": 1}),
    "500 for every row, /models answers": Scenario(
        [error(500, "EngineDeadError")], {"http_500": ROWS}, endpoint={"patience_seconds": 5.0}
    ),
    "a connection that is reset for one row": Scenario([{"do": "reset", "contains": THREE}], ONE | {"reset": 1}),
    # --- money and filters ---
    "429 insufficient_quota": Scenario(
        [error(429, "You exceeded your current quota", code="insufficient_quota")], "check the account's balance"
    ),
    "429 billing": Scenario([error(429, "Billing hard limit has been reached")], "check the account's balance"),
    "a quota that comes back": Scenario(
        [error(429, "Quota exceeded for requests per minute. Please retry in 1.5s.") | {"times": 4}], ALL_OK
    ),
    "400 content_filter for one row": Scenario(
        [error(400, "Filtered by our content management policy", code="content_filter") | {"contains": THREE}],
        ONE | {"refused": 1},
    ),
    "500 safety system for one row": Scenario(
        [error(500, "Rejected as a result of our safety system") | {"contains": THREE}], ONE | {"refused": 1}
    ),
    "403 moderation for every row": Scenario(
        [error(403, "Input was flagged by moderation", code="moderation_blocked")], {"refused": ROWS}
    ),
    # --- errors within 200 ---
    "200 with error 503 inside, twice": Scenario([error(200, "Overloaded", code=503) | {"times": 2}], ALL_OK),
    "200 with error 402 inside": Scenario(
        [error(200, "Insufficient credits", code=402)], "check the account's balance"
    ),
    "200 with no choices, twice": Scenario([{"status": 200, "body": '{"choices": []}', "times": 2}], ALL_OK),
    "finish reason abort, twice": Scenario([said("A do", "abort") | {"times": 2}], ALL_OK),
    "an unknown finish reason": Scenario([said("A dog.", "eos_reached")], ALL_OK, says="unknown reason 'eos_reached'"),
    # --- fields ---
    "max_tokens is unknown": Scenario(
        [error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'.")],
        "set token_limit: max_completion_tokens",
    ),
    "seed is forbidden": Scenario(
        [error(422, "extra fields not permitted: seed")], "set seed: false"
    ),
    "a server that is busy for a while": Scenario(
        [error(503, "Loading model") | {"times": 12}], ALL_OK, {"patience_seconds": 60.0}, says="no answer since"
    ),
}  # fmt: skip


def endpoints(script: Scripted, scenario: Scenario) -> dict[str, Any]:
    own = {
        "base_urls": [script.base_url],
        "model": "m",
        "price": {"input": 1000, "output": 2000},
        "patience_seconds": 20.0,
    }
    return {"scripted": own | dict(scenario.endpoint)}
