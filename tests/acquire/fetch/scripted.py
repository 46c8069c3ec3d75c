"""A server that says what a test tells it to, byte by byte."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self

from curate.acquire.fetch.connect import tls_context
from curate.acquire.fetch.fetch import Fetcher
from curate.acquire.fetch.settings import FetchSettings

IMAGE = b"\xff\xd8\xff\xe0 an image \xff\xd9"
SETTINGS = FetchSettings(
    contact="curator@example.com",
    timeout=30.0,
    deadline_seconds=60.0,
    backoff_seconds=0.001,
    allow_networks=("127.0.0.0/8", "::1/128"),
)
TLS = tls_context(ignore_ssl=False)

Script = Callable[[bytes], bytes | Iterable[bytes] | None]
"""A request's head -> the bytes to answer, or pieces of them; None closes the connection."""


def response(body: bytes = IMAGE, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def redirect(location: str, *headers: str) -> bytes:
    return response(b"moved", f"Location: {location}", *headers, status="302 Found")


def path_of(head: bytes) -> str:
    return head.split()[1].decode()


class Scripted:
    """`requests`: heads in the order in which they came; `connections`: how many there were."""

    def __init__(self, script: Script | bytes) -> None:
        self.script: Script = (lambda head: script) if isinstance(script, bytes) else script
        self.requests: list[bytes] = []
        self.connections = 0
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                outer.connections += 1
                while head := self.head():
                    outer.requests.append(head)
                    answer = outer.script(head)
                    if answer is None:
                        return
                    for piece in [answer] if isinstance(answer, bytes) else answer:
                        self.wfile.write(piece)

            def head(self) -> bytes:
                lines = []
                while (line := self.rfile.readline()) not in (b"", b"\r\n"):
                    lines.append(line)
                return b"".join(lines)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # clients leave when they have seen enough

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]

    def url(self, path: str = "/a.jpg", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def fetcher(self, **settings: object) -> Fetcher:
        hooks = {"tls": TLS} | {name: settings.pop(name) for name in ("park", "lookup", "tls") if name in settings}
        own = replace(SETTINGS, allow_ports=(80, 443, self.port))
        return Fetcher(replace(own, **settings), **hooks)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
