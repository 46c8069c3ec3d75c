"""A proxy before an object store, which does to requests what networks and busy stores do.

with started(server) as proxy:
    proxy.faults.append(Fault("slow_down", method="PUT", times=3))
    ...  # ask proxy.url
    proxy.done["slow_down"]
"""

from __future__ import annotations

import asyncio
import io
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "date", "server"}
SLOW_DOWN = (
    '<?xml version="1.0" encoding="UTF-8"?>'
    "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
CONTENTS = re.compile(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", re.DOTALL)


@dataclass
class Fault:
    """What happens to requests.

    `slow_down`: 503. `stall`: no answer. `cut_upload`: the connection is reset while the body is sent. `cut_reply`: it
    is reset after the store has carried out the request. `cut_download`: it is reset within the response body. `lag`: a
    listing omits files younger than `seconds`."""

    do: str
    method: str = ""
    """Requests that it applies to (default: all)."""
    path: str = ""
    """Part of their paths."""
    times: int = 1 << 30
    every: int = 1
    """Only each so-manieth of them."""
    seconds: float = 2.0
    seen: int = 0

    def hits(self, request: web.Request) -> bool:
        lists = "list-type=2" in request.query_string
        fits = lists if self.do == "lag" else (not self.method or request.method == self.method)
        fits = fits and self.path in request.path and self.times > 0
        self.seen += fits
        if not fits or self.seen % self.every:
            return False
        self.times -= 1
        return True


@dataclass
class Proxy:
    server: str
    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    """Faults by what they did."""
    asked: Counter[str] = field(default_factory=Counter)
    """Requests by method; listings as LIST."""
    born: dict[str, float] = field(default_factory=dict)
    """Path -> when it was written last."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked["LIST" if "list-type=2" in request.query_string else request.method] += 1
        fault = next((fault for fault in self.faults if fault.hits(request)), None)
        what = fault.do if fault else ""
        self.done[what] += 1
        if what == "slow_down":
            await request.read()
            return web.Response(status=503, text=SLOW_DOWN, content_type="application/xml")
        if what == "stall":
            await asyncio.sleep(3600)
        if what == "cut_upload":
            await request.content.read(1)
            return self._reset(request)
        body = await request.read()
        async with self.session.request(
            request.method,
            self.server + request.raw_path,
            data=io.BytesIO(body) if body else None,
            headers={name: value for name, value in request.headers.items() if name.lower() != "expect"},
            skip_auto_headers=("Content-Type", "User-Agent", "Accept", "Accept-Encoding"),
            allow_redirects=False,
        ) as found:
            data = await found.read()
            headers = [(name, value) for name, value in found.headers.items() if name.lower() not in HOP]
            status = found.status
        if request.method in ("PUT", "POST") and status < 300:
            self.born[request.path] = time.monotonic()
        if what == "cut_reply":
            return self._reset(request)
        if what == "lag":
            data = self._without_young(request, data, fault.seconds)  # type: ignore[union-attr]
        length = found.headers.get("Content-Length") if request.method == "HEAD" else str(len(data))
        answer = web.StreamResponse(status=status, headers=headers)
        if length is not None and status not in (204, 304):
            answer.headers["Content-Length"] = length
        await answer.prepare(request)
        if what == "cut_download" and len(data) > 1:
            await answer.write(data[: len(data) // 2])
            return self._reset(request)
        if request.method != "HEAD":
            await answer.write(data)
        await answer.write_eof()
        return answer

    def _reset(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response(status=500)

    def _without_young(self, request: web.Request, data: bytes, seconds: float) -> bytes:
        bucket, now = request.path.rstrip("/"), time.monotonic()

        def kept(match: re.Match[bytes]) -> bytes:
            born = self.born.get(f"{bucket}/{match[1].decode()}", 0.0)
            return b"" if now - born < seconds else match[0]

        return CONTENTS.sub(kept, data)

    async def serve(self, ready: threading.Event, over: asyncio.Event) -> None:
        async with aiohttp.ClientSession(auto_decompress=False) as self.session:
            app = web.Application(client_max_size=1 << 30)
            app.router.add_route("*", "/{path:.*}", self.handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set()
            await over.wait()
            await runner.cleanup()


@contextmanager
def started(server: str) -> Iterator[Proxy]:
    proxy, ready, loop, over = Proxy(server), threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(proxy.serve(ready, over)), daemon=True)
    thread.start()
    ready.wait()
    yield proxy
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()
