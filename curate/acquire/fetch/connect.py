"""Opens connections, to checked addresses only.

A name says nothing about where it leads, and its answer may change between a check and a connect. So the address that
the socket is about to connect to is checked, for literals and for each answer of the name server. A proxy connects in
our place, and decides in our place.
"""

from __future__ import annotations

import base64
import socket
import ssl
import time
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from curate.acquire.fetch.codes import Failure, http_code
from curate.acquire.fetch.connection import Connection, explain, late
from curate.acquire.fetch.dead import Dead
from curate.acquire.fetch.dns import Resolver
from curate.acquire.fetch.settings import FetchSettings
from curate.acquire.fetch.target import Target
from curate.core.addresses import networks, reason_denied

MOST_ADDRESSES = 4
"""Addresses of one host that are tried before it counts as unreachable."""


class Proxy:
    """`http://[user:password@]host:port`. Raises ValueError for anything else; the message has no password."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            self.port = parts.port or 80
        except ValueError:
            self.port = 0
        if parts.scheme != "http" or not parts.hostname or not self.port:
            raise ValueError("proxy: not an http URL with a host; write it like http://proxy:3128")
        self.host = parts.hostname
        self.header = b""
        if parts.username is not None:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self.header = b"Proxy-Authorization: Basic " + base64.b64encode(secret) + b"\r\n"


class Connector:
    def __init__(self, settings: FetchSettings, resolver: Resolver, tls: ssl.SSLContext | None = None) -> None:
        """Raises ValueError for a setting that cannot be used."""
        self._timeout = settings.timeout
        self._resolver = resolver
        self._dead = Dead()
        self._allowed = networks(settings.allow_networks)
        self._tls = tls or tls_context(settings.ignore_ssl)
        self.proxy = Proxy(settings.proxy) if settings.proxy else None

    def connect(self, target: Target, end: float) -> Connection:
        """Raises Failure: dns, private_address, connect, timeout, deadline, tls, reset, or what the proxy answers."""
        if self.proxy:
            sock = self._reach(self.proxy.host, self.proxy.port, self._resolve(self.proxy.host, end), end)
        else:
            sock = self._reach(target.host, target.port, self._checked(target, end), end)
        try:
            connection = Connection(sock, self._timeout)
            if target.scheme == "https":
                if self.proxy:
                    self._tunnel(connection, target, end)
                connection = Connection(self._secure(sock, target.host, end), self._timeout)
            if not connection.is_quiet():
                raise Failure("reset", "the host closed the connection, or spoke before the request")
            return connection
        except BaseException:  # whatever ends this must not leave the socket open
            sock.close()
            raise

    def _checked(self, target: Target, end: float) -> list[str]:
        """The addresses of a host that may be connected to."""
        found = (target.host,) if target.literal else self._resolve(target.host, end)
        reasons = {address: reason_denied(address, self._allowed) for address in found}
        if all(reasons.values()):
            raise Failure("private_address", "; ".join(str(reason) for reason in reasons.values()))
        return [address for address, reason in reasons.items() if reason is None]

    def _resolve(self, host: str, end: float) -> Iterable[str]:
        left = end - time.monotonic()
        if left <= 0:
            raise Failure("deadline")
        return self._resolver.addresses(host, min(self._timeout, left))

    def _reach(self, host: str, port: int, addresses: Iterable[str], end: float) -> socket.socket:
        self._dead.check(host, port)
        failure = Failure("connect", host)
        for address in list(addresses)[:MOST_ADDRESSES]:
            wait = min(self._timeout, end - time.monotonic())
            if wait <= 0:
                raise Failure("deadline")
            try:
                sock = _open(address, port, wait)
            except OSError as error:
                failure = Failure("connect", f"{host}: {error.strerror or error}")
                if time.monotonic() >= end:
                    break
            else:
                self._dead.reached(host, port)
                return sock
        self._dead.failed(host, port)
        raise Failure("deadline") if time.monotonic() >= end else failure

    def _secure(self, sock: socket.socket, host: str, end: float) -> ssl.SSLSocket:
        """The handshake as a whole takes at most the socket's time-out: `ssl` counts from its beginning."""
        wait = min(self._timeout, end - time.monotonic())
        if wait <= 0:
            raise Failure("deadline")
        sock.settimeout(wait)
        try:
            return self._tls.wrap_socket(sock, server_hostname=host)
        except TimeoutError:
            raise late(end, self._timeout) from None
        except (OSError, ValueError) as error:
            raise explain(error) if isinstance(error, OSError) else Failure("tls", str(error)) from error

    def _tunnel(self, connection: Connection, target: Target, end: float) -> None:
        assert self.proxy
        place = f"{target.authority.removesuffix(f':{target.port}')}:{target.port}"
        request = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n".encode() + self.proxy.header + b"\r\n"
        response = connection.ask(request, end, method="CONNECT")
        if response.status != 200:
            raise Failure(http_code(response.status), "the proxy's answer to CONNECT")


def tls_context(ignore_ssl: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ignore_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _open(address: str, port: int, wait: float) -> socket.socket:
    """`address` is numeric: nothing is resolved here."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.settimeout(wait)
        sock.connect((address, port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:  # whatever ends this must not leave the socket open
        sock.close()
        raise
    return sock
