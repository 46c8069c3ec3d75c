"""What a request takes: memory, and tokens and dollars, as expected by its length and as the endpoint reports them."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from typing import Any

from curate.core.endpoints import Endpoint
from curate.core.spend import ESTIMATES, Spend, whole
from curate.engine.requests.share import Cost

CHARACTERS_PER_TOKEN = 4
IMAGE_TOKENS = 500
"""An image, as a data URL, is taken to be so many tokens."""
COMPLETION_TOKENS = 256
"""Taken for a request that sets no maximum."""
MOST_TOKENS = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d{1,9})')


def guess(body: bytes) -> Cost:
    """Tokens that a request is expected to take."""
    texts, images, at = [], 0, 0
    while (start := body.find(b";base64,", at)) >= 0:
        texts.append(body[at:start])
        images += 1
        at = body.find(b'"', start)
        at = len(body) if at < 0 else at
    texts.append(body[at:])
    text = b"".join(texts)
    most = MOST_TOKENS.search(text)
    completion = int(most[1]) if most else COMPLETION_TOKENS
    return Cost(len(text) / CHARACTERS_PER_TOKEN + images * IMAGE_TOKENS, completion)


def of_answer(endpoint: Endpoint, guessed: Cost, answer: Any) -> Spend:
    """What a request cost, by `usage` of its answer; if there is none, by the length of its texts."""
    if not isinstance(answer, dict):
        answer = {}
    if isinstance(usage := answer.get("usage"), dict):
        prompt, completion = whole(usage.get("prompt_tokens")), whole(usage.get("completion_tokens"))
        if prompt is not None and completion is not None:
            return Spend.priced(endpoint.price, requests=1, prompt_tokens=prompt, completion_tokens=completion)
    characters = len(json.dumps(answer.get("choices")))
    return expected(endpoint, Cost(guessed.prompt, characters / CHARACTERS_PER_TOKEN))


def free(endpoint: Endpoint) -> Spend:
    """One request that the endpoint did not work on."""
    return Spend.priced(endpoint.price, requests=1)


def expected(endpoint: Endpoint, guess: Cost) -> Spend:
    """One request whose tokens are not known."""
    tokens = dict(zip(ESTIMATES, (round(guess.prompt), round(guess.completion)), strict=True))
    return Spend.priced(endpoint.price, requests=1, estimated=1, **tokens)


def weight(request: Any) -> int:
    """Approximate bytes of a request."""
    if isinstance(request, (str, bytes)):
        return len(request)
    if dataclasses.is_dataclass(request):
        return sum(weight(getattr(request, item.name)) for item in dataclasses.fields(request))
    if isinstance(request, (tuple, frozenset)):
        return sum(weight(part) for part in request)
    return sys.getsizeof(request)
