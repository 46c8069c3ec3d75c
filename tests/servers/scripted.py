"""A scripted OpenAI-compatible endpoint in a separate process, with the latency, slots, answers and faults of a test.

with started() as endpoint:
    script = endpoint.script(latency_seconds=0.2, slots=32, faults=[{"text": "hello", "status": 503, "times": 2}])
    ...  # ask script.url
    script.stats()["requests"]; script.log()
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from aiohttp import web

from tests.servers import answers, captions
from tests.servers.request import Asked


@dataclass
class Script:
    """What the server does with requests under one name, and what it has seen of them."""

    # --- speed ---
    latency_seconds: float = 0.0
    latency_sigma: float = 0.0
    """Latencies are log-normal around `latency_seconds`, by a hash of the request."""
    seconds_per_word: float = 0.0
    slots: int = 1000
    stall_after: int = -1
    """Requests from this one on get no answer (-1: all get one)."""
    hangs: float = 0.0
    """Share of the requests that get no answer, by a hash of `hangs_seed` and their number."""
    hangs_seed: int = 0
    # --- who may ask what ---
    key: str = ""
    """Requests without it get 401."""
    models: list[str] = field(default_factory=list)
    """Names it serves; requests for others get `unknown_model_status`. Empty: any."""
    unknown_model_status: int = 404
    max_image_bytes: int = 1 << 40
    """Larger images get 413."""
    reported_model: str = ""
    """The model in answers (default: the requested one)."""
    fingerprint: str = ""
    reports_usage: bool = True
    # --- what it answers: `echo` repeats the text of the request, `captions` are like a model's ---
    style: str = "echo"
    enforces_schema: bool = False
    """Whether it enforces JSON schemas. If not, a share of its JSON is damaged or does not fit the schema."""
    damaged: float = 0.0
    wrong_schema: float = 0.0
    loops: float = 0.0
    """Share of captions that end in a repetition; then the shares of refusals, of `content_filter`, of answers without
    text, and of captions that use words of their context."""
    refusals: float = 0.0
    filtered: float = 0.0
    empty: float = 0.0
    with_context: float = 0.0
    orders: list[dict[str, str]] = field(default_factory=list)
    """`find` (a regular expression) and `say`: see `answers.obeyed`."""
    wrapped: str = answers.WRAPPED
    """A regular expression of what the prompt marks as data; its group `data` is JSON or text."""
    obeys_wrapped: float = 0.3
    faults: list[dict[str, Any]] = field(default_factory=list)
    """`text`, `contains` (a part of the prompt) or `image` (digest): of which request (default: all); `times`: how
    often (default: always); and `status`, `headers` and `body` of what is answered (`{authorization}` becomes the
    header), or `do`: `reset` the connection, `stall`."""
    logged: int = 20_000
    """Requests in the log, at most."""

    # --- what it has seen ---
    texts: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    hung: int = 0
    bytes: int = 0
    requests: int = 0
    active: int = 0
    most: int = 0
    answered: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    slot_seconds: float = 0.0
    first: float = 0.0
    last: float = 0.0

    def __post_init__(self) -> None:
        self.free = asyncio.Semaphore(self.slots)

    def stats(self) -> dict[str, Any]:
        wall = self.last - self.first
        names = ("requests", "times", "headers", "bytes", "most", "active", "answered", "hung", "prompt_tokens")
        return {name: getattr(self, name) for name in (*names, "completion_tokens")} | {
            "texts": dict(self.texts),
            "busy": self.slot_seconds / (wall * self.slots) if wall else 0.0,
        }

    def fault(self, asked: Asked) -> dict[str, Any]:
        for fault in self.faults:
            fits = fault.get("text", asked.text) == asked.text and fault.get("image") in (None, *asked.images)
            fits &= fault.get("contains", "") in asked.all_text
            if fits and fault.get("times", 1) > 0:
                if "times" in fault:
                    fault["times"] -= 1
                return fault
        return {}

    def seconds(self, seed: object) -> float:
        """Latency of a request."""
        if not self.latency_sigma:
            return self.latency_seconds
        share = min(max(captions.unit(seed, "latency"), 1e-6), 1 - 1e-6)
        return self.latency_seconds * math.exp(self.latency_sigma * NormalDist().inv_cdf(share))


class Server:
    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.stalled = asyncio.Event()

    async def control(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if request.method == "PUT":
            self.scripts[name] = Script(**await request.json())
        if request.method == "PATCH":
            for field_name, value in (await request.json()).items():
                setattr(self.scripts[name], field_name, value)
        return web.json_response(self.scripts[name].log if "log" in request.query else self.scripts[name].stats())

    async def models(self, request: web.Request) -> web.Response:
        script = self.scripts[request.match_info["name"]]
        if script.key and request.headers.get("Authorization") != f"Bearer {script.key}":
            return _error(401, "Incorrect API key provided", "invalid_api_key")
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "tests"} for name in script.models]
        return web.json_response({"object": "list", "data": data})

    async def chat(self, request: web.Request) -> web.Response:
        script = self.scripts[request.match_info["name"]]
        asked = Asked.of(await request.read())
        now = time.monotonic()
        script.first = script.first or now
        script.texts[asked.text] += 1
        script.requests += 1
        script.bytes += asked.size
        script.times.append(now)
        script.headers = {name: value for name, value in request.headers.items() if name in ("Authorization",)}
        script.active += 1
        script.most = max(script.most, script.active)
        line = _line(script, request, asked, now)
        if len(script.log) < script.logged:
            script.log.append(line)
        try:
            response = await self.answer(request, script, asked)
            line["status"] = response.status
            return response
        finally:
            line["seconds"] = time.monotonic() - now
            script.active -= 1

    async def answer(self, request: web.Request, script: Script, asked: Asked) -> web.Response:
        if (wrong := _wrong(script, request, asked)) is not None:
            return wrong
        if 0 <= script.stall_after < script.requests:
            await self.stalled.wait()
        if captions.unit(f"{script.hangs_seed}/{script.requests}", "hangs") < script.hangs:
            script.hung += 1
            await self.stalled.wait()
        said, reason = _said(script, asked)
        async with script.free:
            began = time.monotonic()
            words = len((said or "").split())
            await asyncio.sleep(script.seconds(asked.seed) + script.seconds_per_word * words)
            script.last = time.monotonic()
            script.slot_seconds += script.last - began
        fault = script.fault(asked)
        if fault.get("do") == "stall":
            await self.stalled.wait()
        if fault.get("do") == "reset":
            assert request.transport is not None
            request.transport.abort()
        if fault:
            body = fault.get("body", "").replace("{authorization}", request.headers.get("Authorization", ""))
            return web.Response(status=fault.get("status", 200), headers=fault.get("headers"), text=body)
        script.answered += 1
        return web.json_response(_completion(script, asked, said, reason, words))


def _wrong(script: Script, request: web.Request, asked: Asked) -> web.Response | None:
    """The error for a request that it rejects."""
    if script.key and request.headers.get("Authorization") != f"Bearer {script.key}":
        return _error(401, "Incorrect API key provided", "invalid_api_key")
    model = asked.body.get("model")
    if script.models and model not in script.models:
        return _error(script.unknown_model_status, f"The model `{model}` does not exist.", "model_not_found")
    if any(size > script.max_image_bytes for size in asked.image_bytes):
        return _error(413, f"An image is larger than {script.max_image_bytes} bytes", "image_too_large")
    return None


def _error(status: int, message: str, code: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return web.json_response({"error": error}, status=status)


def _said(script: Script, asked: Asked) -> tuple[str | None, str]:
    """Text and finish reason of an answer, without a limit of tokens."""
    if script.style == "echo":
        return f"said {asked.text}", "stop"
    seed, text = asked.seed, asked.all_text
    share = captions.unit(seed, "outcome")
    for kind in ("filtered", "empty", "refusals", "loops"):
        share -= getattr(script, kind)
        if share < 0:
            said = {"refusals": captions.refusal, "loops": captions.loop}.get(kind, lambda _: "")(seed)
            return (None, "content_filter") if kind == "filtered" else (said, "stop")
    order = answers.obeyed(text, script.orders, script.wrapped, script.obeys_wrapped, seed) if script.orders else None
    if order is not None:
        return order, "stop"
    schema = answers.schema_of(asked.body, text)
    if schema is not None:
        return _as_json(script, schema, seed), "stop"
    said = captions.caption(seed)
    if captions.unit(seed, "with context") < script.with_context:
        said = captions.with_words_of(said, " ".join(answers.inside(text, script.wrapped)), seed)
    return said, "stop"


def _as_json(script: Script, schema: Any, seed: object) -> str:
    if script.enforces_schema:
        return json.dumps(answers.value_of(schema, seed))
    if captions.unit(seed, "wrong") < script.wrong_schema:
        return json.dumps(answers.wrong_value_of(schema, seed))
    value = answers.value_of(schema, seed)
    return answers.damaged(value, seed) if captions.unit(seed, "damaged") < script.damaged else json.dumps(value)


def _completion(script: Script, asked: Asked, said: str | None, reason: str, words: int) -> dict[str, Any]:
    if words > asked.limit:
        said, reason, words = " ".join((said or "").split()[: int(asked.limit)]), "length", int(asked.limit)
    message = {"role": "assistant", "content": said}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    found: dict[str, Any] = {"object": "chat.completion", "model": script.reported_model or asked.body["model"]}
    found["choices"] = [choice]
    if script.fingerprint:
        found["system_fingerprint"] = script.fingerprint
    script.prompt_tokens += asked.tokens
    script.completion_tokens += words
    if script.reports_usage:
        used = {"prompt_tokens": asked.tokens, "completion_tokens": words, "total_tokens": asked.tokens + words}
        found["usage"] = used
    return found


def _line(script: Script, request: web.Request, asked: Asked, now: float) -> dict[str, Any]:
    """One request in the log."""
    return {
        "time": now,
        "text": asked.text,
        "prompt": asked.all_text,
        "images": asked.images,
        "image_bytes": asked.image_bytes,
        "active": script.active,
        "authorization": request.headers.get("Authorization", ""),
        "status": None,
        **{name: asked.body.get(name) for name in ("seed", "model", "temperature", "top_p", "response_format")},
        "max_tokens": None if asked.limit == math.inf else int(asked.limit),
    }


def main() -> None:
    async def serve() -> None:
        server = Server()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/control/{name}", server.control)
        app.router.add_post("/{name}/v1/chat/completions", server.chat)
        app.router.add_get("/{name}/v1/models", server.models)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
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
    def base_url(self) -> str:
        return f"{self.root}/{self.name}/v1"

    @property
    def url(self) -> str:
        return f"{self.base_url}/chat/completions"

    def stats(self, script: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the server has seen under this name; with a `script`, from now on."""
        return self._control("GET" if script is None else "PUT", script)

    def change(self, **script: Any) -> None:
        """Change fields of the script; what the server has seen stays."""
        self._control("PATCH", script)

    def log(self) -> list[dict[str, Any]]:
        """Each request that the server has seen, by time: text, prompt, image digests, seed, authorization, status,
        and how many were active."""
        return self._control("GET", query="?log=1")

    def _control(self, method: str, body: Any = None, query: str = "") -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"{self.root}/control/{self.name}{query}", data, method=method)
        with urllib.request.urlopen(asked, timeout=60) as answer:
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
    command = [sys.executable, "-m", "tests.servers.scripted"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield Endpoint(f"http://127.0.0.1:{port}")
        process.stdin.close()  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
