"""Endpoints, images and a client for tests of the stages that ask: it gives prepared answers and keeps the requests."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from curate.caption.asking import Asking
from curate.codec.images import decode
from curate.core.contracts import Sample

ENDPOINTS: dict[str, Any] = {"small": {"base_urls": ["http://127.0.0.1:9/v1"], "model": "tiny"}}
STRICT: dict[str, Any] = {"strict": {**ENDPOINTS["small"], "model": "large", "schema": True}}


def completion(text: Any, reason: str = "stop", **more: Any) -> dict[str, Any]:
    """A chat completion as servers answer it."""
    message = {"role": "assistant", "content": text} | more.pop("message", {})
    usage = {"prompt_tokens": 30, "completion_tokens": 7, "total_tokens": 37}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"model": "tiny-1", "system_fingerprint": "fp-1", "choices": [choice], "usage": usage} | more


@dataclass
class Answering:
    """A client that answers with these, in turn."""

    answers: list[Any]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    endpoints: list[str | None] = field(default_factory=list)

    async def post(
        self, url: str, body: Any, headers: Mapping[str, str] | None = None, *, endpoint: str | None = None
    ) -> Any:
        assert url == "/chat/completions"
        self.bodies.append(json.loads(body))
        self.endpoints.append(endpoint)
        return self.answers.pop(0)


def answered(stage: Asking, row: Mapping[str, Any], *answers: Any) -> tuple[dict[str, Any], Answering]:
    """(columns of a row, the client with its requests)."""
    client = Answering(list(answers))
    stage.setup({})
    columns = asyncio.run(stage.answer(stage.request(row), client))
    assert not client.answers
    return columns, client


def sample(width: int = 60, height: int = 40, colour: Any = (200, 30, 30)) -> Sample:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, "PNG")
    return Sample(buffer.getvalue(), decode)


def texts(body: Mapping[str, Any]) -> Iterable[str]:
    """The text of each message."""
    for message in body["messages"]:
        content = message["content"]
        yield content if isinstance(content, str) else next(one["text"] for one in content if one["type"] == "text")
