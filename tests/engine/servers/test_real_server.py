"""A real server, `transformers serve` with a tiny random model, asked by the engine's client."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image

from curate.core.endpoints import Endpoint
from curate.core.nouns.facts import DONE, ERROR
from curate.engine.requests.client import Answered, Requester
from tests.engine.servers.tell import Send
from tests.servers.transformers_server import RealServer

WORDS = 12

pytestmark = pytest.mark.nightly  # in CI, test_launched has a real server


class Client:
    """Sends bodies to the server, some at once."""

    def __init__(self, ask: Endpoint) -> None:
        self.model, self.requester = ask.model, Requester(Send(ask=ask, attempts=2))

    def __call__(self, *bodies: dict[str, Any]) -> list[Answered]:
        sent = [self.requester.send(json.dumps({"model": self.model} | body).encode()) for body in bodies]
        return [one.result(timeout=60) for one in sent]


@pytest.fixture
def client(real_server: RealServer) -> Iterator[Client]:
    made = Client(real_server.endpoint)
    yield made
    made.requester.close()


def body(text: str = "what is on the table", image: bytes | None = None, seed: int = 1, **more: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if image is not None:
        url = f"data:image/jpeg;base64,{base64.b64encode(image).decode()}"
        parts.insert(0, {"type": "image_url", "image_url": {"url": url}})
    messages = [{"role": "system", "content": "say what you see"}, {"role": "user", "content": parts}]
    return {"messages": messages, "max_tokens": WORDS, "seed": seed, **more}


def picture(colour: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (64, 48), colour).save(stream, "JPEG")
    return stream.getvalue()


def said(found: Answered) -> str:
    assert found.columns is not None, found.message
    return str(found.columns["answer"]["choices"][0]["message"]["content"])


def test_an_answer_depends_on_text_image_and_seed(client: Client) -> None:
    same = body("a dog", picture("red"))
    others = [body("a cat", picture("red")), body("a dog", picture("blue")), body("a dog", picture("red"), seed=2)]
    texts = [said(client(one)[0]) for one in (same, same, *others)]  # one by one: its seed is one for all requests
    assert texts[0] == texts[1] and len(set(texts)) == 4


def test_usage_is_counted_with_the_tokens_of_images(client: Client) -> None:
    [text], [image] = client(body()), client(body(image=picture("red")))
    for found in (text, image):
        used = found.columns["answer"]["usage"]  # type: ignore[index]
        spend = found.spend["big"]
        assert (spend.requests, spend.estimated) == (1, 0) and used["completion_tokens"] <= WORDS
        assert (spend.prompt_tokens, spend.completion_tokens) == (used["prompt_tokens"], used["completion_tokens"])
    assert image.spend["big"].prompt_tokens == text.spend["big"].prompt_tokens + 16  # 4 x 4 patches


def test_the_limit_of_tokens_is_reported(client: Client) -> None:
    [found] = client(body(max_tokens=2))
    choice = found.columns["answer"]["choices"][0]  # type: ignore[index]
    assert (choice["finish_reason"], len(choice["message"]["content"].split())) == ("length", 2)


def test_many_requests_at_once_are_all_answered(client: Client) -> None:
    found = client(*(body(seed=seed, max_tokens=4) for seed in range(16)))
    assert {one.status for one in found} == {DONE} and len({said(one) for one in found}) > 8


def test_another_client_gets_the_same_answer_also_as_a_stream(client: Client, real_server: RealServer) -> None:
    asked: Any = {"model": real_server.model, **body(image=picture("green"))}
    with openai.OpenAI(base_url=real_server.base_url, api_key="none") as other:
        whole = other.chat.completions.create(**asked)
        parts = list(other.chat.completions.create(**asked, stream=True))
    [found] = client(asked)
    streamed = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert said(found) == whole.choices[0].message.content == streamed.strip()


def test_an_unknown_model_ends_the_run_in_one_line(real_server: RealServer) -> None:
    client = Client(real_server.endpoint.model_copy(update={"model": "another"}))
    [found] = client(body())
    client.requester.close()
    assert found.fatal is not None and "\n" not in str(found.fatal)
    assert str(found.fatal).startswith("endpoint big: ") and "Server is pinned to" in str(found.fatal)
    assert "check its model, 'another'" in str(found.fatal)


def test_a_field_that_it_does_not_know_is_the_requests_fault(client: Client) -> None:
    good, bad = client(body(), body(top_k=3))
    assert (good.status, bad.status, bad.reason) == (DONE, ERROR, "endpoint_refuses")
    assert "Unexpected fields" in bad.message


def test_an_image_that_breaks_the_server_is_in_error_and_others_are_answered(client: Client) -> None:
    """It answers 500 as plain text, and closes the connection."""
    colours = ["red", "green", "blue"]
    *good, bad = client(*(body(image=picture(colour)) for colour in colours), body(image=b"not an image"))
    assert {one.status for one in good} == {DONE}
    assert (bad.status, bad.reason, bad.requests) == (ERROR, "endpoint_refuses", 2)
