"""AsyncMaps for the engine's own tests: they ask the scripted endpoint."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Hashable, Mapping
from typing import Annotated, Any, ClassVar

import pyarrow as pa

from curate.core.contracts import AsyncMap, Client, Filter, Runtime
from curate.core.errors import Reject
from curate.engine.passes import answer_log, asking


class Say(AsyncMap):
    """What the endpoint says of a caption. Numbers (the captions' last words) may be left out or be refused here."""

    op: ClassVar[str] = "toy.say"

    url: Annotated[str, Runtime()]
    silent: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    modulo: int = 0
    """Captions whose numbers are equal modulo this make equal requests."""
    flush_seconds: Annotated[float, Runtime()] = 10.0
    backoff_seconds: Annotated[float, Runtime()] = 0.01

    def setup(self, artifacts: Mapping[str, Any]) -> None:
        answer_log.FLUSH_SECONDS = self.flush_seconds  # here and in any worker
        asking.BACKOFF_SECONDS = self.backoff_seconds

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("said", pa.string()), pa.field("tokens", pa.int64())])

    def request(self, row: Mapping[str, Any]) -> Hashable | None:
        number = int(row["caption"].split()[-1])
        if number in self.refused:
            raise Reject("not_asked")
        if number in self.silent:
            return None
        return f"picture {number % self.modulo if self.modulo else number}"

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        body = {"model": "scripted", "messages": [{"role": "user", "content": request}]}
        found = await client.post(self.url, body)
        return {"said": found["choices"][0]["message"]["content"], "tokens": found["usage"]["completion_tokens"]}


class Loose(Say):
    """Takes what comes as it is."""

    op: ClassVar[str] = "toy.loose"

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        found = await super().answer(request, client)
        return found | {"tokens": "many"} if request.endswith("3") else found


class Stuck(Say):
    """Waits for ever for an answer to some numbers, which no time-out ends: a bug of the stage."""

    op: ClassVar[str] = "toy.stuck"
    stuck: tuple[int, ...] = ()

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        if int(request.split()[-1]) in self.stuck:
            await asyncio.Event().wait()
        return await super().answer(request, client)


class See(Say):
    """What the endpoint says of a picture, which is sent."""

    op: ClassVar[str] = "toy.see"
    pixels: ClassVar[bool] = True

    def request(self, row: Mapping[str, Any]) -> Hashable | None:
        return row["caption"], row["image"]

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        text, image = request
        url = b"data:image/bmp;base64," + base64.b64encode(image)
        parts = b'[{"type":"image_url","image_url":{"url":"%s"}},{"type":"text","text":"%s"}]' % (url, text.encode())
        body = b'{"model":"scripted","messages":[{"role":"user","content":%s}]}' % parts
        found = await client.post(self.url, body)
        return {"said": found["choices"][0]["message"]["content"], "tokens": found["usage"]["completion_tokens"]}


class Told(Filter):
    """Rejects what got no answer."""

    op: ClassVar[str] = "toy.told"

    def reads(self) -> tuple[str, ...]:
        return ("said",)

    def keep(self, table: pa.Table) -> Any:
        return ["nothing" if said is None else None for said in table.column("said").to_pylist()]
