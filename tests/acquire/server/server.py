"""The server: pipelines.serve's, with a log, faults and HTTPS.

with FaultServer(addresses=hosts(3), mounted={"a.jpg": data}) as server:
    server.url("a.jpg", "127.0.0.2")     # a well-behaved image; each address is another host
    server.at("/drip")                   # a fault: see faults.py
    server.at("/404", tls="good")        # over HTTPS, with one of the certificates of certificates.py
    server.log.most_at_once()
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from pipelines.serve import Connection, ImageServer, Request, listening
from tests.acquire.server.certificates import Certificates
from tests.acquire.server.exchange import Exchange, reset_on_close
from tests.acquire.server.faults import fault_of
from tests.acquire.server.log import Log

TLS_ADDRESSES = 5
"""Each takes a socket per kind of certificate, and many systems allow a process 1,024."""


def hosts(count: int) -> tuple[str, ...]:
    """Addresses of loopback: 127.0.0.1, 127.0.0.2 … Each is another host to a client."""
    return tuple(f"127.0.0.{number}" for number in range(1, count + 1))


def has_ipv6() -> bool:
    """Whether this machine has IPv6 on loopback; many containers have none."""
    try:
        listening(["::1"])[0].close()
    except OSError:
        return False
    return True


class FaultyConnection(Connection):
    """Logs each request. A fault, or an answer with a delay, is a separate task, cancelled when the client leaves."""

    server: FaultServer
    task: asyncio.Task[None] | None = None

    def handle(self, request: Request) -> None:
        server = self.server
        visit = server.log.begin(request, self.transport.get_extra_info("peername"))
        fault = fault_of(request.path)
        if fault is None and not server.delay:
            visit.end = visit.start
            super().handle(request)
            return
        server.seen[request.host, request.target] += 1
        exchange = Exchange(self, request, server.seen[request.host, request.target])

        async def answer() -> None:
            try:
                await asyncio.sleep(server.delay)
                if fault is None:
                    super(FaultyConnection, self).handle(request)
                else:
                    await fault(exchange)
            finally:
                visit.end = server.loop.time()
                self.busy = False
            self.next_request()

        self.busy = True
        self.task = server.loop.create_task(answer())

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self.task is not None:
            self.task.cancel()


class Silent(asyncio.Protocol):
    """Accepts a connection and never says a word."""

    def __init__(self, open_ones: set[asyncio.Transport]) -> None:
        self._open = open_ones

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._open.discard(self._transport)


class Rude(Silent):
    """Resets the connection at the first byte: in HTTPS, within the handshake."""

    def data_received(self, data: bytes) -> None:
        reset_on_close(self._transport)
        self._transport.abort()


class FaultServer(ImageServer):
    """certificates: a folder for them; None: no HTTPS. delay: seconds before each answer; it may be changed. HTTPS is
    at the first TLS_ADDRESSES addresses."""

    connection = FaultyConnection

    def __init__(
        self,
        folder: Path | None = None,
        *,
        mounted: Mapping[str, bytes] | None = None,
        addresses: Sequence[str] = ("127.0.0.1",),
        certificates: Path | None = None,
        delay: float = 0.0,
    ) -> None:
        super().__init__(folder, mounted=mounted, addresses=addresses)
        self.log = Log()
        self.seen: Counter[tuple[str, str]] = Counter()
        """Requests by host and target, for faults that pass."""
        self.delay = delay
        self.certificates = Certificates(certificates) if certificates is not None else None
        self.tls_ports: dict[str, int] = {}
        self.raw_ports: dict[str, int] = {}
        """silent, rude: see the classes. closed: nothing listens. full: a connection is never accepted."""
        self._raw: set[asyncio.Transport] = set()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> FaultServer:
        super().__enter__()
        for kind, context in self.certificates.contexts().items() if self.certificates else ():
            sockets = listening(self.addresses[:TLS_ADDRESSES])
            asyncio.run_coroutine_threadsafe(self.listen(sockets, context), self.loop).result()
            self.tls_ports[kind] = sockets[0].getsockname()[1]
        asyncio.run_coroutine_threadsafe(self._listen_raw(), self.loop).result()
        return self

    async def _listen_raw(self) -> None:
        for name, protocol in {"silent": Silent, "rude": Rude}.items():
            (one,) = listening(self.addresses[:1])
            self._servers.append(await self.loop.create_server(partial(protocol, self._raw), sock=one))
            self.raw_ports[name] = one.getsockname()[1]
        for name in ("closed", "full"):
            one = socket.socket()
            one.bind((self.addresses[0], 0))
            self._sockets.append(one)
            self.raw_ports[name] = one.getsockname()[1]
        one.listen(0)  # one connection fills the queue; Linux then drops what comes
        self._sockets.append(socket.create_connection(one.getsockname()))

    async def _stop(self) -> None:
        await super()._stop()
        for transport in list(self._raw):
            transport.abort()
        while self._raw:
            await asyncio.sleep(0)
        for one in self._sockets:
            one.close()

    def at(self, target: str, address: str | None = None, *, tls: str | None = None) -> str:
        """URL of a path; tls: kind of the certificate."""
        if tls is None:
            return self.origin(address) + target
        return f"https://{address or self.addresses[0]}:{self.tls_ports[tls]}{target}"

    def raw(self, kind: str, *, scheme: str = "http") -> str:
        """URL at one of `raw_ports`."""
        return f"{scheme}://{self.addresses[0]}:{self.raw_ports[kind]}/image.jpg"

    @property
    def ports(self) -> tuple[int, ...]:
        """Value of `allow_ports`: the usual ones, and all of this server."""
        return (80, 443, self.port, *self.tls_ports.values(), *self.raw_ports.values())
