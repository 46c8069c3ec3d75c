"""One request and the bytes that answer it, for faults that an HTTP library would not let us write."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from pipelines.serve import Connection, Request, Response


class Exchange:
    """What a fault gets. `count` is how many requests of this host and target (path and query) there
    have been, this one too."""

    def __init__(self, connection: Connection, request: Request, count: int) -> None:
        self.connection = connection
        self.transport = connection.transport
        self.request = request
        self.count = count

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.request.target).query, keep_blank_values=True))

    def number(self, name: str, default: float) -> float:
        return float(self.query.get(name, default))

    def respond(self, body: bytes = b"", status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.connection.respond(Response(body, status, headers or {}))

    def head(self, *headers: str, status: str = "200 OK") -> None:
        """Write the start of a response by hand."""
        self.write("\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1"))

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    async def flood(self, data: bytes) -> None:
        """Write `data` until the client closes the connection."""
        while not self.transport.is_closing():
            self.transport.write(data)
            while self.transport.get_write_buffer_size() > 1 << 20 and not self.transport.is_closing():
                await asyncio.sleep(0.002)
            await asyncio.sleep(0)

    async def drip(self, data: bytes, seconds: float) -> None:
        """Write `data` byte by byte with `seconds` between them."""
        for place in range(len(data)):
            if self.transport.is_closing():
                return
            self.transport.write(data[place : place + 1])
            await asyncio.sleep(seconds)

    def close(self) -> None:
        """Close when all is written."""
        self.transport.close()

    async def reset(self) -> None:
        """Send RST instead of FIN, after what is written has left."""
        while self.transport.get_write_buffer_size():
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)  # a RST discards what the client's kernel has not yet handed over
        reset_on_close(self.transport)
        self.transport.abort()


def reset_on_close(transport: asyncio.Transport) -> None:
    raw = transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
