"""A proxy before an endpoint, which does to requests what networks and busy servers do.

with started(script.base_url) as proxy:
    proxy.faults.append(Fault("status", status=429, headers=retry_after("ms", 50), times=3))
    ...  # ask proxy.base_url
    proxy.done["status"]; proxy.log
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "date", "server"}
CHUNK = b" " * (1 << 16)


@dataclass
class Fault:
    """What happens to chat requests.

    `slow`: passed on after `seconds`. `status`: answered with `status`, `headers` and `body`, and not passed on.
    `stall`: no answer. `cut_before`: the connection is reset instead of passing the request on; `cut_after`: after the
    server has answered; `cut_middle`: within the body. `malformed`: half of the answer's JSON. `empty`: an answer
    without a body. `wrong_schema`: JSON of another shape. `endless`: a body without end, a chunk each `seconds`."""

    do: str
    text: str = ""
    """Part of the bodies of the requests that it applies to."""
    times: int = 1 << 30
    every: int = 1
    """Only each so-manieth of them."""
    seconds: float = 0.0
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    seen: int = 0

    def hits(self, body: bytes) -> bool:
        fits = self.times > 0 and self.text.encode() in body
        self.seen += fits
        if not fits or self.seen % self.every:
            return False
        self.times -= 1
        return True


def retry_after(kind: str, value: float) -> dict[str, str]:
    """The header in seconds, as a date, or in milliseconds (`ms`)."""
    if kind == "ms":
        return {"retry-after-ms": f"{value:g}"}
    date = email.utils.formatdate(time.time() + value, usegmt=True)
    return {"Retry-After": date if kind == "date" else f"{value:g}"}


@dataclass
class Proxy:
    """`server`: base URL of the endpoint. Tests change `faults` while it runs."""

    server: str
    port: int = 0
    faults: list[Fault] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    """Requests by what was done to them; "" if nothing."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """Each chat request: time, size, what was done, status (0: none was sent)."""
    active: int = 0
    most: int = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}{urlsplit(self.server).path}"

    @property
    def url(self) -> str:
        return f"{self.base_url}/chat/completions"

    def die(self) -> None:
        """Stop listening and reset what is open, as a server that is killed."""
        self._run(self._die())

    def come_back(self) -> None:
        """Listen again, on the same port."""
        self._run(self._listen())

    # --- inside its thread ---

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        fault = None
        if request.method == "POST":
            fault = next((fault for fault in self.faults if fault.hits(body)), None)
            self.done[fault.do if fault else ""] += 1
        line = {"time": time.monotonic(), "size": len(body), "did": fault.do if fault else "", "status": 0}
        if request.method == "POST":
            self.log.append(line)
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            return await self._answer(request, body, fault, line)
        except ConnectionError:  # the client, or we ourselves, have reset it meanwhile
            return web.Response(status=500)
        finally:
            self.active -= 1

    async def _answer(
        self, request: web.Request, body: bytes, fault: Fault | None, line: dict[str, Any]
    ) -> web.StreamResponse:
        what = fault.do if fault else ""
        if fault and what == "slow":
            await asyncio.sleep(fault.seconds)
        if fault and what == "status":
            line["status"] = fault.status
            return web.Response(status=fault.status, headers=fault.headers, text=fault.body)
        if what == "stall":
            await asyncio.Event().wait()
        if what == "cut_before":
            return self._reset(request)
        line["status"] = 200
        if what == "empty":
            return web.Response()
        if what == "wrong_schema":
            return web.json_response({"result": "fine", "items": [1, 2, 3]})
        if fault and what == "endless":
            return await self._endless(request, fault.seconds)
        status, headers, data = await self._pass_on(request, body)
        line["status"] = 0 if what == "cut_after" else status  # before the client has the answer
        if what == "cut_after":
            return self._reset(request)
        if what == "malformed":
            data = data[: len(data) // 2]
        answer = web.StreamResponse(status=status, headers=headers)
        answer.content_length = len(data)
        await answer.prepare(request)
        if what == "cut_middle":
            await answer.write(data[: len(data) // 2])
            return self._reset(request)
        await answer.write(data)
        await answer.write_eof()
        return answer

    async def _pass_on(self, request: web.Request, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        place = urlsplit(self.server)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in (*HOP, "host")}
        try:
            async with self._session.request(
                request.method, f"{place.scheme}://{place.netloc}{request.raw_path}", data=body or None, headers=headers
            ) as found:
                kept = [(name, value) for name, value in found.headers.items() if name.lower() not in HOP]
                return found.status, kept, await found.read()
        except aiohttp.ClientError as error:
            return 502, [], json.dumps({"error": {"message": type(error).__name__}}).encode()

    async def _endless(self, request: web.Request, seconds: float) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        with suppress(ConnectionError):
            await answer.write(b'{"choices": [{"message": {"content": "')
            while True:
                await answer.write(CHUNK)
                await asyncio.sleep(seconds)
        return answer

    def _reset(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response(status=500)

    async def _listen(self) -> None:
        await self._die()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self.handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def _die(self) -> None:
        if self._runner is not None:
            assert self._runner.server is not None
            for site in self._runner.sites:
                await stop_accepting(site._server)  # type: ignore[attr-defined]
            for one in self._runner.server.connections:
                if one.transport is not None:
                    one.transport.abort()
            await self._runner.cleanup()
            self._runner = None

    async def serve(self, ready: threading.Event) -> None:
        self._runner: web.AppRunner | None = None
        self._over, self._loop = asyncio.Event(), asyncio.get_running_loop()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False) as session:
            self._session = session
            await self._listen()
            ready.set()
            await self._over.wait()
            await self._die()

    def _run(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(timeout=60)


async def stop_accepting(server: asyncio.Server) -> None:
    """Before a server is closed: asyncio loses a connection that it is accepting meanwhile."""
    for one in server.sockets:
        asyncio.get_running_loop().remove_reader(one.fileno())
    await asyncio.sleep(0.01)


@contextmanager
def started(server: str) -> Iterator[Proxy]:
    proxy, ready = Proxy(server), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(proxy.serve(ready)), daemon=True, name="fault proxy")
    thread.start()
    ready.wait(60)
    try:
        yield proxy
    finally:
        proxy._loop.call_soon_threadsafe(proxy._over.set)
        thread.join()
