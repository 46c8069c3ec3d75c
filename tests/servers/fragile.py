"""An endpoint that one request brings down: it resets all connections, and listens again after a while.

with started(b"picture 7") as server:
    ...  # ask server.base_url
    server.falls; server.texts
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Fragile:
    poison: bytes
    """Part of the body of the request that brings it down."""
    seconds: float = 0.02
    """Latency."""
    away_seconds: float = 0.1
    port: int = 0
    falls: int = 0
    texts: Counter[str] = field(default_factory=Counter)
    """Answered requests."""
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, ready: threading.Event) -> None:
        self._loop, self._over, self._fallen = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        while not self._over.is_set():
            self._server = server = await asyncio.start_server(self._talk, "127.0.0.1", self.port, backlog=128)
            self.port = self._server.sockets[0].getsockname()[1]
            ready.set()
            await self._fallen.wait()
            self._fallen.clear()
            await asyncio.sleep(0.01)
            server.close()
            await asyncio.sleep(0 if self._over.is_set() else self.away_seconds)

    def _fall(self) -> None:
        for one in self._server.sockets:
            self._loop.remove_reader(one.fileno())  # asyncio loses a connection that it accepts while it closes
        for writer in self._open:
            writer.transport.abort()
        self._fallen.set()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                body = await reader.readexactly(int(length.partition(b":")[2]))
                if self.poison in body:
                    self.falls += 1
                    self._fall()
                    break
                await asyncio.sleep(self.seconds)
                text = json.loads(body)["messages"][-1]["content"]
                choice = {"message": {"role": "assistant", "content": f"said {text}"}, "finish_reason": "stop"}
                answer = json.dumps({"model": "scripted", "choices": [choice]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(answer), answer))
                await writer.drain()
                self.texts[text] += 1
        self._open.discard(writer)
        writer.transport.abort()


@contextmanager
def started(poison: bytes) -> Iterator[Fragile]:
    server, ready = Fragile(poison), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(ready)), daemon=True, name="fragile server")
    thread.start()
    assert ready.wait(60)
    try:
        yield server
    finally:
        server._loop.call_soon_threadsafe(lambda: (server._over.set(), server._fall()))
        thread.join()
