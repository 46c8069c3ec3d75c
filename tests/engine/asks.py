"""AsyncMaps for the engine's own tests, which send requests to the scripted endpoint, and helpers to run them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa

from curate.core.contracts import AsyncMap, Client, Filter, Runtime
from curate.core.endpoints import Endpoint, Endpoints, endpoint_of
from curate.core.errors import Reject
from curate.engine.passes.answers import log
from curate.engine.requests import http
from curate.engine.run import Result, run
from curate.engine.state import Options
from tests.engine import toys, workspaces

LOSSES = Options(failure_budget=1.0)


class Say(AsyncMap):
    """The endpoint's answer to a caption. Some numbers (the captions' last words) get no request or are rejected."""

    op: ClassVar[str] = "toy.say"

    url: Annotated[str, Runtime()]
    silent: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    modulo: int = 0
    """Captions whose numbers are equal modulo this make equal requests."""
    flush_seconds: Annotated[float, Runtime()] = 0.5
    backoff_seconds: Annotated[float, Runtime()] = 0.01

    def setup(self, artifacts: Mapping[str, Any]) -> None:
        log.FLUSH_SECONDS = self.flush_seconds  # here and in any worker
        http.BACKOFF_SECONDS = self.backoff_seconds

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


class Ask(AsyncMap):
    """The answer of a named endpoint to a caption."""

    op: ClassVar[str] = "toy.ask"

    endpoints: Annotated[Endpoints, Runtime()]
    endpoint: Annotated[str, Runtime()] = "local"
    max_tokens: int = 10
    backoff_seconds: Annotated[float, Runtime()] = 0.01

    def setup(self, artifacts: Mapping[str, Any]) -> None:
        http.BACKOFF_SECONDS = self.backoff_seconds  # here and in any worker

    def asks(self) -> Mapping[str, Endpoint]:
        return {self.endpoint: endpoint_of(self.endpoints, self.endpoint)}

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("said", pa.string()), pa.field("model", pa.string())])

    def request(self, row: Mapping[str, Any]) -> Hashable | None:
        return f"picture {row['caption'].split()[-1]}"

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        model, messages = self.asks()[self.endpoint].model, [{"role": "user", "content": request}]
        body = {"model": model, "messages": messages, "max_tokens": self.max_tokens}
        found = await client.post("/chat/completions", body, endpoint=self.endpoint)
        return {"said": found["choices"][0]["message"]["content"], "model": found["model"]}


class AskTwice(Ask):
    """Another stage with the same endpoint."""

    op: ClassVar[str] = "toy.ask_twice"

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("said_twice", pa.string())])

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        return {"said_twice": (await super().answer(f"second {request}", client))["said"]}


def ask(*base_urls: str, max_in_flight: int = 40, timeout_seconds: float = 10.0, **endpoint: Any) -> Ask:
    """A stage whose endpoint has these URLs."""
    local = {"base_urls": base_urls, "model": "scripted", "patience_seconds": 5.0} | endpoint
    return Ask(endpoints={"local": local}, max_in_flight=max_in_flight, timeout_seconds=timeout_seconds)


class Loose(Say):
    """Returns a value of the wrong type for some numbers."""

    op: ClassVar[str] = "toy.loose"

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        found = await super().answer(request, client)
        return found | {"tokens": "many"} if request.endswith("3") else found


class Stuck(Say):
    """Waits forever for the answer to some numbers, without a time-out: a bug of the stage."""

    op: ClassVar[str] = "toy.stuck"
    stuck: tuple[int, ...] = ()

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        if int(request.split()[-1]) in self.stuck:
            await asyncio.Event().wait()
        return await super().answer(request, client)


class See(Say):
    """The endpoint's answer to an image, which is sent."""

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


class Answered(Filter):
    """Rejects rows without an answer."""

    op: ClassVar[str] = "toy.told"

    def reads(self) -> tuple[str, ...]:
        return ("said",)

    def keep(self, table: pa.Table) -> Any:
        return ["nothing" if said is None else None for said in table.column("said").to_pylist()]


def go(workspace: Path, stage: Say | Ask, options: Options = LOSSES, engine: Any = "local", **source: Any) -> Result:
    return run(toys.chain(stage, **source), str(workspace), options=options, engine=engine)


def answer_rows(workspace: Path, op: str = "toy.say") -> list[dict[str, Any]]:
    """Rows of facts, sorted by answer."""
    rows = [row for shards in workspaces.facts(workspace, op).values() for held in shards.values() for row in held]
    return sorted(rows, key=lambda row: (str(row["said"]), row["_row"]))


def segments(workspace: Path) -> list[str]:
    """Segments of all logs."""
    return sorted(path.name for path in workspace.glob("facts/*/*/log/*/[!.]*"))
