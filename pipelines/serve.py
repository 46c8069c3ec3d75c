"""A loopback server of a folder of images: `python -m pipelines.serve FOLDER` prints the URL and serves until Ctrl-C.

GET /images/NAME answers with the file NAME of the folder. It speaks HTTP/1.1 with keep-alive over asyncio's protocols,
because a benchmark of downloads should measure the client: see `bench`. Only loopback addresses are served.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import ipaddress
import mimetypes
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, unquote, urlsplit

PREFIX = "/images/"
MAX_HEAD_BYTES = 1 << 16
BIND_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    """Path and query as sent; to a proxy, clients send the whole URL."""
    headers: Mapping[str, str]
    """By lower-case name."""

    @property
    def path(self) -> str:
        path = self.target.partition("?")[0]
        return path if path.startswith("/") else urlsplit(path).path

    @property
    def host(self) -> str:
        """The Host header without its port."""
        name = self.headers.get("host", "")
        return name if name.endswith("]") else name.rpartition(":")[0] or name


@dataclass(frozen=True, slots=True)
class Response:
    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, *, head_only: bool = False) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {_phrase(self.status)}"]
        headers = {"Content-Length": str(len(self.body)), **self.headers}
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        return head if head_only else head + self.body


class Connection(asyncio.Protocol):
    """A client's connection: one request at a time."""

    def __init__(self, server: ImageServer) -> None:
        self.server = server
        self.transport: asyncio.Transport
        self._received = bytearray()
        self.busy = False
        """Whether a request is being answered; later ones wait in the buffer."""
        self.closes = False
        """Whether the client asked for one response only."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self.next_request()

    def next_request(self) -> None:
        while not self.busy and (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).decode("latin-1")
            del self._received[: end + 4]
            try:
                request = parse(head)
            except ValueError:
                self.reject()
                return
            self.closes = request.headers.get("connection", "").lower() == "close"
            self.handle(request)
        if len(self._received) > MAX_HEAD_BYTES or not (self._received[:1] or b"G").isalpha():  # such as TLS
            self.reject()

    def reject(self) -> None:
        self.closes = True
        self.respond(Response(b"malformed request\n", 400))

    def handle(self, request: Request) -> None:
        self.respond(self.server.answer(request), head_only=request.method == "HEAD")

    def respond(self, response: Response, *, head_only: bool = False) -> None:
        self.transport.write(response.encode(head_only=head_only))
        if self.closes:
            self.transport.close()


class ImageServer:
    """A context manager: a thread serves a folder (or `mounted` bytes by name) from start to exit.

    addresses: loopback addresses to listen on, all with the same port. To a client, each is another host.
    """

    connection: type[Connection] = Connection

    def __init__(
        self,
        folder: Path | None = None,
        *,
        mounted: Mapping[str, bytes] | None = None,
        addresses: Sequence[str] = ("127.0.0.1",),
        port: int = 0,
    ) -> None:
        others = [address for address in addresses if not ipaddress.ip_address(address).is_loopback]
        if others:
            raise ValueError(f"{others[0]}: not a loopback address; give addresses of 127.0.0.0/8, or ::1")
        self.folder = folder
        self.mounted = dict(mounted or {})
        self.addresses = tuple(addresses)
        self.port = port
        self.connections: set[Connection] = set()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="image server", daemon=True)
        self._servers: list[asyncio.Server] = []

    def answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response(b"only GET and HEAD\n", 405, {"Allow": "GET, HEAD"})
        data = self.read(unquote(request.path.removeprefix(PREFIX))) if request.path.startswith(PREFIX) else None
        if data is None:
            return Response(b"not found\n", 404)
        return Response(data, headers={"Content-Type": _media_type(request.path)})

    def read(self, name: str) -> bytes | None:
        if name in self.mounted:
            return self.mounted[name]
        if self.folder is None or "\0" in name or ".." in Path(name).parts or Path(name).is_absolute():
            return None
        with contextlib.suppress(OSError):
            return (self.folder / name).read_bytes()
        return None

    def url(self, name: str, address: str | None = None) -> str:
        """URL of an image by its name, which may contain slashes."""
        return self.origin(address) + PREFIX + quote(name)

    def origin(self, address: str | None = None) -> str:
        return f"http://{_bracketed(address or self.addresses[0])}:{self.port}"

    def __enter__(self) -> ImageServer:
        try:
            sockets = listening(self.addresses, self.port)
        except OSError as error:
            self.loop.close()
            raise OSError(
                error.errno, f"cannot listen on port {self.port} of {', '.join(self.addresses)}: {error.strerror}"
            ) from error
        self.port = sockets[0].getsockname()[1]
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.listen(sockets), self.loop).result()
        return self

    async def listen(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        for one in sockets:
            self._servers.append(await self.loop.create_server(lambda: self.connection(self), sock=one, ssl=tls))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self.connections:
            connection.transport.abort()
        while self.connections:
            await asyncio.sleep(0)


def parse(head: str) -> Request:
    """Raises ValueError if the head is malformed."""
    first, *lines = head.split("\r\n")
    method, target, _version = first.split(" ")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(line)
        headers[name.strip().lower()] = value.strip()
    return Request(method, target, headers)


def listening(addresses: Sequence[str], port: int = 0) -> list[socket.socket]:
    """Sockets that listen on one port of several addresses. Port 0: one that is free on all of them."""
    attempts = 1 if port else BIND_ATTEMPTS
    while True:
        attempts -= 1
        sockets: list[socket.socket] = []
        try:
            for address in addresses:
                chosen = sockets[0].getsockname()[1] if sockets else port
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                sockets.append(socket.create_server((address, chosen), family=family, backlog=1024))
        except OSError as error:
            for one in sockets:
                one.close()
            if error.errno != errno.EADDRINUSE or not attempts:
                raise
        else:
            return sockets


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _media_type(path: str) -> str:
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description="serve a folder of images on loopback, for tests of downloads")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--address", action="append", help="loopback address; default: 127.0.0.1; may be repeated")
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        sys.exit(f"serve: {arguments.folder}: not a folder; give a folder of images")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            ImageServer(arguments.folder, addresses=arguments.address or ["127.0.0.1"], port=arguments.port) as server,
            contextlib.suppress(KeyboardInterrupt),
        ):
            print(server.origin() + PREFIX, flush=True)
            threading.Event().wait()
    except (OSError, ValueError) as error:
        sys.exit(f"serve: {error}")


if __name__ == "__main__":
    main()
