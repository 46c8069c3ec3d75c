"""Addresses of hosts, kept for a while: answers, and failures too.

`getaddrinfo` takes no time-out and returns no TTL. So each lookup runs in its own thread, which callers leave behind if
it takes too long, and an answer is kept for at most `keep_seconds`. Threads that need the same host share one lookup.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from curate.acquire.fetch.codes import Failure

Lookup = Callable[[str], Sequence[str]]
"""Host name -> addresses. Raises OSError."""

MOST_HOSTS = 50_000
_SURE = {socket.EAI_NONAME, socket.EAI_FAIL} | {getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


def system_lookup(host: str) -> list[str]:
    """Addresses in the order in which the system prefers them (RFC 6724)."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class _Entry:
    __slots__ = ("expires", "future")

    def __init__(self) -> None:
        self.future: Future[tuple[tuple[str, ...], str]] = Future()
        """Addresses, or none and why. No exception: each raise of a kept one would lengthen its traceback."""
        self.expires = float("inf")


class Resolver:
    def __init__(
        self, lookup: Lookup = system_lookup, keep_seconds: float = 300.0, keep_failure_seconds: float = 30.0
    ) -> None:
        """Failures that may pass, such as a name server that does not answer, are kept for `keep_failure_seconds`."""
        self._lookup = lookup
        self._keep_seconds = keep_seconds
        self._keep_failure_seconds = min(keep_failure_seconds, keep_seconds)
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()

    def addresses(self, host: str, wait_seconds: float) -> tuple[str, ...]:
        """Raises Failure: dns."""
        with self._lock:
            entry = self._entries.get(host)
            if entry is None or entry.expires <= time.monotonic():
                entry = self._ask(host)
        try:
            addresses, reason = entry.future.result(wait_seconds)
        except TimeoutError:
            raise Failure("dns", f"no answer for {host} within {wait_seconds:.1f} s") from None
        if not addresses:
            raise Failure("dns", f"{host}: {reason}")
        return addresses

    def _ask(self, host: str) -> _Entry:
        self._entries.pop(host, None)
        while len(self._entries) >= MOST_HOSTS:
            del self._entries[next(iter(self._entries))]
        entry = self._entries[host] = _Entry()
        threading.Thread(target=self._answer, args=(host, entry), name="dns", daemon=True).start()
        return entry

    def _answer(self, host: str, entry: _Entry) -> None:
        addresses: tuple[str, ...] = ()
        reason = "no address"
        keep = self._keep_seconds
        try:
            addresses = tuple(self._lookup(host))
        except Exception as error:  # noqa: BLE001  # the threads that wait for this one must hear of anything
            reason = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
            if not (isinstance(error, socket.gaierror) and error.errno in _SURE):
                keep = self._keep_failure_seconds
        entry.expires = time.monotonic() + keep
        entry.future.set_result((addresses, reason))
