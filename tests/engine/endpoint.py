"""A scripted OpenAI-compatible endpoint in a separate process, with the latency, slots and faults of a test.

with started() as endpoint:
    script = endpoint.script(latency_seconds=0.2, slots=32, faults=[{"text": "hello", "status": 503, "times": 2}])
    ...  # ask script.url
    script.stats()["requests"]
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Script:
    """What the server does with requests under one name, and what it has seen of them."""

    latency_seconds: float = 0.0
    slots: int = 1000
    stall_after: int = -1
    """Requests from this one on get no answer (-1: all get one)."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    """`text`: of which request (default: all); `times`: how often (default: always); and `status`, `headers`
    and `body` of what is answered, or `do`: `reset` the connection, `stall`."""
    texts: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    bytes: int = 0
    active: int = 0
    most: int = 0
    answered: int = 0
    slot_seconds: float = 0.0
    first: float = 0.0
    last: float = 0.0

    def __post_init__(self) -> None:
        self.free = asyncio.Semaphore(self.slots)

    def stats(self) -> dict[str, Any]:
        wall = self.last - self.first
        return {
            "requests": self.texts.total(),
            "texts": dict(self.texts),
            "times": self.times,
            "headers": self.headers,
            "bytes": self.bytes,
            "most": self.most,
            "answered": self.answered,
            "busy": self.slot_seconds / (wall * self.slots) if wall else 0.0,
        }

    def fault(self, text: str) -> dict[str, Any]:
        for fault in self.faults:
            if fault.get("text", text) == text and fault.get("times", 1) > 0:
                if "times" in fault:
                    fault["times"] -= 1
                return fault
        return {}


class Server:
    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.stalled = asyncio.Event()

    async def control(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if request.method == "PUT":
            self.scripts[name] = Script(**await request.json())
        return web.json_response(self.scripts[name].stats())

    async def chat(self, request: web.Request) -> web.Response:
        script = self.scripts[request.match_info["name"]]
        raw = await request.read()
        body = json.loads(raw)
        text = _text(body["messages"][-1]["content"])
        now = time.monotonic()
        script.first = script.first or now
        script.texts[text] += 1
        script.bytes += len(raw)
        script.times.append(now)
        script.headers = {name: value for name, value in request.headers.items() if name in ("Authorization",)}
        script.active += 1
        script.most = max(script.most, script.active)
        try:
            return await self.answer(request, script, body, text)
        finally:
            script.active -= 1

    async def answer(self, request: web.Request, script: Script, body: Any, text: str) -> web.Response:
        if 0 <= script.stall_after < script.texts.total():
            await self.stalled.wait()
        async with script.free:
            began = time.monotonic()
            await asyncio.sleep(script.latency_seconds)
            script.last = time.monotonic()
            script.slot_seconds += script.last - began
        fault = script.fault(text)
        if fault.get("do") == "stall":
            await self.stalled.wait()
        if fault.get("do") == "reset":
            assert request.transport is not None
            request.transport.abort()
        if fault:
            return web.Response(
                status=fault.get("status", 200), headers=fault.get("headers"), text=fault.get("body", "")
            )
        script.answered += 1
        message = {"role": "assistant", "content": f"said {text}"}
        usage = {"prompt_tokens": len(text.split()), "completion_tokens": 2}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"model": body["model"], "choices": [choice], "usage": usage})


def _text(content: Any) -> str:
    """Text of a message, given as a string or as parts next to images."""
    return content if isinstance(content, str) else next(part["text"] for part in content if part["type"] == "text")


def main() -> None:
    async def serve() -> None:
        server = Server()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/control/{name}", server.control)
        app.router.add_post("/{name}/v1/chat/completions", server.chat)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)  # noqa: T201 - the parent process reads it
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until it closes our input
        server.stalled.set()

    asyncio.run(serve())


# --- the side of the tests --------------------------------------------------------------------------------------------


@dataclass
class Scripted:
    """One test's script on the server."""

    root: str
    name: str

    @property
    def url(self) -> str:
        return f"{self.root}/{self.name}/v1/chat/completions"

    def stats(self, script: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the server has seen under this name; with a `script`, from now on."""
        data = None if script is None else json.dumps(script).encode()
        asked = urllib.request.Request(
            f"{self.root}/control/{self.name}", data, method="GET" if data is None else "PUT"
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer)


@dataclass
class Endpoint:
    root: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def script(self, **script: Any) -> Scripted:
        made = Scripted(self.root, f"script-{next(self.numbers)}")
        made.stats(script)
        return made


@contextlib.contextmanager
def started() -> Iterator[Endpoint]:
    command = [sys.executable, "-m", "tests.engine.endpoint"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield Endpoint(f"http://127.0.0.1:{port}")
        process.stdin.close()  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
