"""An AsyncMap that asks a named endpoint about captions."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa

from curate.core.contracts import AsyncMap, Client, Runtime
from curate.core.endpoints import Endpoint


class Tell(AsyncMap):
    """The endpoint's answer to a caption, and the tokens of both."""

    op: ClassVar[str] = "toy.tell"

    ask: Annotated[Endpoint, Runtime()]
    max_tokens: int = 8
    dies_once: Annotated[str, Runtime()] = ""
    """A file: the worker that can create it is killed by an answer."""

    def asks(self) -> Mapping[str, Endpoint]:
        return {"big": self.ask}

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("said", pa.string()), pa.field("tokens", pa.int64())])

    def request(self, row: Mapping[str, Any]) -> Hashable | None:
        return row["caption"]

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        body = {"model": self.ask.model, "max_tokens": self.max_tokens, "seed": 1}
        body["messages"] = [{"role": "user", "content": request}]
        found = await client.post("/chat/completions", body, endpoint="big")
        if self.dies_once and request == "picture 20":
            with contextlib.suppress(FileExistsError):
                Path(self.dies_once).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return {"said": found["choices"][0]["message"]["content"], "tokens": found["usage"]["completion_tokens"]}


class Send(Tell):
    """Sends any body, and returns the whole answer."""

    op: ClassVar[str] = "toy.send"

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        return {"answer": await client.post("/chat/completions", request, endpoint="big")}
