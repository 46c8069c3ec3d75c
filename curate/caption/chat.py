"""Chat completions: the body of a request, of which only image, text and seed vary by row, and the answer to it.

https://platform.openai.com/docs/api-reference/chat is what OpenAI-compatible servers follow. The body has only fields
that vLLM, SGLang, llama.cpp and `transformers serve` accept too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from curate.caption.checks.words import is_blank
from curate.caption.prompt import Prompt
from curate.caption.thoughts import without_thoughts
from curate.core.contracts import NoAnswer
from curate.core.endpoints import Endpoint
from curate.core.finish import LENGTH, WITHHELD, kind_of
from curate.core.spend import whole

ONLY_JSON = "Answer only with a JSON object, without any text around it, that fits this JSON schema:"
AGAIN = "This answer does not fit the JSON schema: {problem}. Answer again, only with a JSON object that fits it."
QUOTED = 4000
"""Characters of a bad answer that are sent back."""
TEXTS = ("text", "output_text")
"""Types of a message's parts that are not thoughts."""
OK, TRUNCATED, REFUSED, EMPTY = "ok", "truncated", "refused", "empty"


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image as it is sent: JPEG in base64."""

    digest: bytes
    base64: bytes = field(compare=False, repr=False)
    bytes: int = field(compare=False)
    """Size of the JPEG."""
    width: int = field(compare=False)
    height: int = field(compare=False)


class Form:
    """A prompt for an endpoint, as bytes. Image and text of the row come after everything that is the same for all
    rows, so that servers can reuse the beginning of a prompt."""

    def __init__(self, prompt: Prompt, endpoint: Endpoint) -> None:
        self.prompt, self.schema = prompt, prompt.schema_of_answer()
        system = prompt.system_text()
        if self.schema and not endpoint.enforces_schema:
            system = "\n\n".join(filter(None, [system, ONLY_JSON, _json(self.schema)]))
        messages = [{"role": "system", "content": system}] if system else []
        for example in prompt.examples:
            messages.append({"role": "user", "content": prompt.user_text(example.context, "example")})
            messages.append({"role": "assistant", "content": example.text()})
        before = "".join(f"{_json(message)}," for message in messages)
        self._head = f'{{"model":{_json(endpoint.model)},"messages":[{before}{{"role":"user","content":'.encode()
        self._tail = f",{_json(self._settings(endpoint))[1:-1]}".encode()
        self._seed = b',"seed":%d' if endpoint.seed else b""

    def _settings(self, endpoint: Endpoint) -> dict[str, Any]:
        sampling = self.prompt.sampling
        given = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            endpoint.token_limit: sampling.max_tokens,
        }
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.schema and endpoint.enforces_schema:
            about = {"name": self.prompt.name, "schema": self.schema, "strict": _is_strict(self.schema)}
            settings["response_format"] = {"type": "json_schema", "json_schema": about}
        return settings

    def body(self, text: str, image: EncodedImage | None, seed: int, follow: Sequence[Mapping[str, str]] = ()) -> bytes:
        """The request. `follow`: messages after it."""
        parts = [self._head]
        if image is None:
            parts.append(_json(text).encode())
        else:
            parts += [b'[{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,', image.base64]
            parts.append(b'"}},{"type":"text","text":%s}]' % _json(text).encode())
        after = "".join(f",{_json(message)}" for message in follow)
        parts += [b"}", after.encode(), b"]", self._tail, self._seed % seed if self._seed else b"", b"}"]
        return b"".join(parts)

    def again(self, bad: str, problem: str) -> list[dict[str, str]]:
        """Messages that ask once more after a bad answer."""
        told = {"role": "user", "content": AGAIN.replace("{problem}", problem)}
        return [{"role": "assistant", "content": bad[:QUOTED]}, told]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether a schema meets OpenAI's condition for `strict`: every object is closed and requires all properties."""
    inside = [
        schema,
        *(schema.get("properties") or {}).values(),
        schema.get("items"),
        *schema.get("$defs", {}).values(),
    ]
    objects = [part for part in inside if isinstance(part, Mapping)]
    closed = schema.get("type") != "object" or (
        schema.get("additionalProperties") is False
        and set(schema.get("required", ())) == set(schema.get("properties", ()))
    )
    return closed and all(_is_strict(part) for part in objects[1:])


@dataclass(frozen=True)
class Completion:
    """What an endpoint answered."""

    text: str | None
    """null unless the outcome is ok, or truncated after some text."""
    outcome: str
    model: str | None
    fingerprint: str | None
    prompt_tokens: int | None
    completion_tokens: int | None


def completion_of(found: Any, *, thoughts: bool = False) -> Completion:
    """Raises NoAnswer for anything but a chat completion. thoughts: whether a text keeps them, and their marks."""
    try:
        choice = found["choices"][0]
        message = choice["message"]
        content = _text(message.get("content"))
        text, open_thought = (content.strip(), False) if thoughts else without_thoughts(content)
        reason, refusal = kind_of(choice.get("finish_reason")), message.get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        shown = " ".join(json.dumps(found).split())[:200]
        raise NoAnswer("not_a_completion", f"expected choices with a message, found {shown}") from None
    if reason == WITHHELD or refusal:
        outcome = REFUSED
    elif reason == LENGTH or open_thought:
        outcome = TRUNCATED
    else:
        outcome = EMPTY if is_blank(text) else OK
    usage = found.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    return Completion(
        text if outcome in (OK, TRUNCATED) and not is_blank(text) else None,
        outcome,
        _string(found.get("model")),
        _string(found.get("system_fingerprint")),
        whole(usage.get("prompt_tokens")),
        whole(usage.get("completion_tokens")),
    )


def _text(content: Any) -> str:
    """A message's text, given as a string or in parts."""
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content if part.get("type", "text") in TEXTS)
    return _storable(content or "")


def _string(value: Any) -> str | None:
    return _storable(value) if isinstance(value, str) else None


def _storable(text: str) -> str:
    """The text with a ? for each lone surrogate, which JSON may have and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")
