"""Checks of endpoints before a run: whether a server answers, takes the key and has the model."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from curate.core.contracts import AsyncMap
from curate.core.endpoints import CHAT, Endpoint
from curate.core.secrets import redact
from curate.engine.requests.http import named, quoted

if TYPE_CHECKING:
    import aiohttp

SECONDS = 10.0
"""Limit of a request, in which a model may have to be loaded."""
LISTED = 5
"""Names of models in a message."""
log = logging.getLogger("curate")


@dataclass(frozen=True)
class Reply:
    """What a URL answered; without a status, why it did not."""

    url: str
    status: int = 0
    body: bytes = b""
    error: str = ""


def problems(stage: AsyncMap) -> list[str]:
    """Why the endpoints of a stage cannot be asked from this process, one line each."""
    return [found for name, endpoint in stage.asks().items() if (found := problem(name, endpoint))]


def problem(name: str, endpoint: Endpoint) -> str | None:
    if endpoint.launch is not None:
        from curate.engine import servers  # for the few endpoints that are launched

        return servers.problem(name, endpoint)
    found = asyncio.run(_problem(endpoint))
    return f"endpoint {name}: {redact(found)}" if found else None


async def _problem(endpoint: Endpoint) -> str | None:
    import aiohttp  # takes 0.2 s, and most stages have no endpoint

    headers = {"Authorization": f"Bearer {endpoint.key.value()}"} if endpoint.key is not None else {}
    async with aiohttp.ClientSession(headers=headers) as http:
        replies = await asyncio.gather(*(ask(http, "GET", f"{base}/models") for base in endpoint.base_urls))
        for base, reply in zip(endpoint.base_urls, replies, strict=True):
            if reply.status in (401, 403):
                return _rejected(endpoint, reply)
            models = _models(reply)
            if models and endpoint.model not in models and not await _answers(http, base, endpoint.model):
                some = ", ".join(models[:LISTED]) + (", …" if len(models) > LISTED else "")
                return f"no model {endpoint.model!r} at {base} (it has: {some}); correct the model"
    if not any(reply.status for reply in replies):
        return f"none of its URLs answers ({replies[0].url}: {replies[0].error}); start it, or correct base_urls"
    for reply in replies:
        if not reply.status:
            log.warning("%s does not answer (%s); the other URLs are asked", reply.url, reply.error)
    return None


def _rejected(endpoint: Endpoint, reply: Reply) -> str:
    if endpoint.key is None:
        return f"{reply.url} needs a key ({named(reply.status)}); add `key: env:NAME`"
    return (
        f"the key {endpoint.key} is rejected by {reply.url} ({named(reply.status)}: {quoted(reply.body)}); correct it"
    )


def _models(reply: Reply) -> list[str]:
    """Names of the models that a server lists; none if it has no list that we know."""
    try:
        found: Any = json.loads(reply.body) if reply.status == 200 else {}
        return [str(model["id"]) for model in found["data"]]
    except (ValueError, TypeError, KeyError):
        return []


async def _answers(http: aiohttp.ClientSession, base: str, model: str) -> bool:
    """Whether a server answers for a model that it does not list: some know other names of a model."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    reply = await ask(http, "POST", f"{base}{CHAT}", body)
    return reply.status not in (400, 404, 422)


async def ask(
    http: aiohttp.ClientSession, method: str, url: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """What it answers within SECONDS. Redirects are not followed: they would take the key along."""
    import aiohttp

    limit = aiohttp.ClientTimeout(total=SECONDS)
    try:
        async with http.request(
            method, url, json=body, headers=headers, timeout=limit, allow_redirects=False
        ) as response:
            return Reply(url, response.status, await response.read())
    except TimeoutError:
        return Reply(url, error=f"no answer in {SECONDS:g} s")
    except (aiohttp.ClientError, OSError) as error:
        return Reply(url, error=f"{type(error).__name__}: {error}")
