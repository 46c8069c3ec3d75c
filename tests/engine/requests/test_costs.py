"""What a request takes."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.endpoints import Endpoint
from curate.engine.requests.costs import COMPLETION_TOKENS, IMAGE_TOKENS, guess, of_answer, weight
from curate.engine.requests.share import Cost

REQUESTS = st.recursive(st.text() | st.binary(), lambda inner: st.tuples(inner, inner))


@given(REQUESTS)
def test_a_request_weighs_what_it_holds(request_made: Any) -> None:
    def held(part: Any) -> int:
        return sum(map(held, part)) if isinstance(part, tuple) else len(part)

    assert weight(request_made) == held(request_made)


# --- tokens -----------------------------------------------------------------------------------------------------------

ENDPOINT = Endpoint(base_urls=("http://localhost/v1",), model="m", price={"input": 1.0, "output": 2.0})  # type: ignore[arg-type]


@given(st.text(max_size=400), st.integers(1, 9999), st.lists(st.binary(max_size=3000), max_size=3))
def test_a_guess_does_not_depend_on_the_size_of_images(text: str, most: int, images: list[bytes]) -> None:
    parts: list[Any] = [{"type": "text", "text": text}]
    urls = ["data:image/jpeg;base64," + base64.b64encode(image).decode() for image in images]
    parts += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    body = json.dumps({"messages": [{"role": "user", "content": parts}], "max_tokens": most}).encode()
    found = guess(body)
    without = len(body) - sum(len(url.partition(",")[2]) for url in urls)
    assert found.completion == most
    assert abs(found.prompt - without / 4 - IMAGE_TOKENS * len(images)) <= 2 * len(images)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"max_completion_tokens": 70}', 70),
        (b'{"max_tokens":12,"messages":[]}', 12),
        (b'{"messages": []}', COMPLETION_TOKENS),
        (b'{"url": "data:image/png;base64,AAAA', COMPLETION_TOKENS),
    ],
)
def test_the_maximum_is_expected(body: bytes, tokens: int) -> None:
    assert guess(body).completion == tokens


def test_usage_counts() -> None:
    spent = of_answer(ENDPOINT, Cost(9, 9), {"usage": {"prompt_tokens": 100, "completion_tokens": 20}})
    assert (spent.prompt_tokens, spent.completion_tokens, spent.estimated) == (100, 20, 0)
    assert spent.dollars == pytest.approx(140e-6)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        None,
        "text",
        {"usage": None},
        {"usage": {"prompt_tokens": "many", "completion_tokens": 2}},
        {"usage": {"prompt_tokens": -1, "completion_tokens": 2}},
        {"choices": [{"message": {"content": "a bus"}}]},
    ],
)
def test_without_usage_the_tokens_are_an_estimate(answer: Any) -> None:
    spent = of_answer(ENDPOINT, Cost(9, 9), answer)
    assert (spent.requests, spent.estimated, spent.tokens, spent.dollars) == (1, 1, 0, 0.0)
    assert spent.estimated_prompt_tokens == 9 and spent.estimated_completion_tokens >= 1
    assert spent.estimated_dollars == pytest.approx((9 + 2 * spent.estimated_completion_tokens) / 1e6)
