"""AsyncMaps for the engine's tests that ask a named endpoint, whose tokens and dollars count."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa

from curate.core.contracts import AsyncMap, Client, Runtime, Table
from curate.core.contracts import Filter as FilterContract
from curate.core.endpoints import Endpoint, Endpoints
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import Result
from tests.engine import toys
from tests.servers.scripted import Scripted

NAME = "scripted"
PRICE = {"input": 2.0, "output": 10.0}
"""Dollars per million tokens."""


def described(script: Scripted, **about: Any) -> dict[str, Any]:
    """An endpoint that leads to a script."""
    return {NAME: {"base_urls": [script.base_url], "model": "scripted", **about}}


class Paid(AsyncMap):
    """The endpoint's answer to a column. Captions `picture N` in the pool; `every`: only numbers divisible by it need a
    request."""

    op: ClassVar[str] = "toy.paid"

    endpoints: Annotated[Endpoints, Runtime()]
    column: str = "caption"
    output: str = "told"
    every: int = 1
    words: int = 0
    """Further words of a prompt: 0 .. 2 * this, by its number."""

    def asks(self) -> Mapping[str, Endpoint]:
        return self.endpoints

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(self.output, pa.string())])

    def request(self, row: Mapping[str, Any]) -> Hashable | None:
        number = int(row[self.column].split()[-1])
        return None if number % self.every else row[self.column]

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        [(name, endpoint)] = self.endpoints.items()
        more = int(request.split()[-1]) % (2 * self.words + 1)
        text = " ".join([*["word"] * more, request])
        body = {"model": endpoint.model, "messages": [{"role": "user", "content": text}], "max_tokens": 10}
        found = await client.post("/chat/completions", body, endpoint=name)
        return {self.output: found["choices"][0]["message"]["content"]}


class Dies(Paid):
    """Its worker is killed while the endpoint works on picture 7, once, when the test says so."""

    op: ClassVar[str] = "toy.dies"

    folder: Annotated[str, Runtime()]

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        asked = asyncio.ensure_future(super().answer(request, client))
        while request == "picture 7" and not asked.done():
            if (die := Path(self.folder, "die")).exists():
                die.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(0.05)
        return await asked


class Third(FilterContract):
    """Keeps every third number."""

    op: ClassVar[str] = "toy.third"

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def keep(self, table: Table) -> Any:
        numbers = [int(text.split()[-1]) for text in table.column("caption").to_pylist()]
        return ["other" if number % 3 else None for number in numbers]


def chain(script: Scripted, about: Mapping[str, Any] | None = None, **source: Any) -> Pipeline:
    """Numbers and one stage that asks."""
    return toys.chain(Paid(endpoints=described(script, **about or {})), **source)


def spent(result: Result) -> tuple[int, int, int]:
    """(requests, tokens in, tokens out) of a run."""
    whole = result.spend.total
    return whole.requests, whole.prompt_tokens, whole.completion_tokens


def seen(script: Scripted) -> tuple[int, int, int]:
    """The same, as the endpoint saw it."""
    stats = script.stats()
    return stats["requests"], stats["prompt_tokens"], stats["completion_tokens"]
