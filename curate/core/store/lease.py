"""Leases, which avoid duplicate work. Correctness does not depend on them but on create-if-absent.

A run that builds an output holds a small file with its owner and a heartbeat. A second run that needs the same output
waits until the manifest appears or the lease is stale: its process has ended (same host), or its heartbeat has stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import psutil

from curate.core.errors import AlreadyExistsError
from curate.core.hashing import digest
from curate.core.store.storage import Storage

BEAT_SECONDS = 5.0
STALE_SECONDS = 45.0
SKEW_FACTOR = 4
"""By the clock, which may differ between hosts, a lease is stale only after this many times STALE_SECONDS."""
POLL_SECONDS = 0.25
LOOK_SECONDS = 3 * BEAT_SECONDS
"""Time to watch the heartbeat of a host whose clock is not trusted."""
DAY_SECONDS = 86400.0
"""Most that clocks of hosts are assumed to differ."""


@lru_cache(maxsize=1)
def owner() -> dict[str, Any]:
    """Identity of this process, distinct from a later process with the same number."""
    return {"host": socket.gethostname(), "boot": psutil.boot_time(), "pid": os.getpid(), "born": _born(os.getpid())}


os.register_at_fork(after_in_child=owner.cache_clear)


def _born(pid: int) -> float | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def is_gone(holder: dict[str, Any]) -> bool:
    """Whether the holder ran on this host and its process has ended."""
    mine = owner()
    if holder["host"] != mine["host"]:
        return False
    return abs(holder["boot"] - mine["boot"]) > 5 or _born(holder["pid"]) != holder["born"]


def is_dead(held: dict[str, Any]) -> bool:
    """Whether a lease is stale, from a single look: its process has ended (same host), or its last heartbeat is old by
    the clock (another host)."""
    if held["owner"]["host"] == owner()["host"]:
        return is_gone(held["owner"])
    return bool(time.time() - held.get("time", time.time()) > SKEW_FACTOR * STALE_SECONDS)


class HeartbeatWatch:
    """Watches a holder's heartbeat from any host. It compares beats, never the clocks of two hosts."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage, self.path = storage, path
        self._seen: dict[str, Any] | None = None
        self._since = 0.0

    def look(self) -> bool | None:
        """Whether the holder is alive; None while unknown: no heartbeat since the first look, at most STALE_SECONDS
        ago."""
        held = read(self.storage, self.path)
        if held is None:
            return False
        if held["owner"]["host"] == owner()["host"]:
            return not is_gone(held["owner"])
        now = time.monotonic()
        first, moved = self._seen is None, held != self._seen
        if moved:
            self._seen, self._since = held, now
        if moved and not first:
            return True
        return False if now - self._since > STALE_SECONDS else None


def is_alive(storage: Storage, path: str) -> bool:
    """Whether a live process holds the lease. If the clock of its host seems wrong, watch it for LOOK_SECONDS."""
    held = read(storage, path)
    if held is None:
        return False
    if held["owner"]["host"] == owner()["host"]:
        return not is_gone(held["owner"])
    behind = time.time() - float(held.get("time", 0.0))
    if 0 <= behind <= SKEW_FACTOR * STALE_SECONDS or behind > DAY_SECONDS:
        return behind <= DAY_SECONDS
    watch, until = HeartbeatWatch(storage, path), time.monotonic() + LOOK_SECONDS
    while (alive := watch.look()) is None and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return bool(alive)


def read(storage: Storage, path: str) -> dict[str, Any] | None:
    try:
        return storage.read_json(path)
    except FileNotFoundError:
        return None


def lease_path(output: str) -> str:
    return f"leases/{digest(output)}.json"


@contextlib.contextmanager
def hold(
    storage: Storage, output: str, done: Callable[[], bool], on_wait: Callable[[dict[str, Any]], None] | None = None
) -> Iterator[bool]:
    """Hold the lease on an output while building it. Yields False without the lease once another run is `done()`."""
    path = lease_path(output)
    if not _acquire(storage, path, output, done, on_wait):
        yield False
        return
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(storage, path, output, stop), daemon=True)
    beat.start()
    try:
        yield not done()
    finally:
        stop.set()
        beat.join()
        storage.remove_file(path)


def _content(output: str, beat: int) -> bytes:
    return json.dumps({"output": output, "owner": owner(), "beat": beat, "time": time.time()}).encode()


def _beat(storage: Storage, path: str, output: str, stop: threading.Event) -> None:
    count = 0
    while not stop.wait(BEAT_SECONDS):
        count += 1
        with contextlib.suppress(Exception):  # errors differ by file system, and none may stop the heartbeat
            storage.publish_bytes(path, _content(output, count))


def _acquire(
    storage: Storage,
    path: str,
    output: str,
    done: Callable[[], bool],
    on_wait: Callable[[dict[str, Any]], None] | None,
) -> bool:
    seen: dict[str, Any] | None = None
    since = time.monotonic()
    while not done():
        try:
            storage.create(path, _content(output, 0))
            return True
        except AlreadyExistsError:
            held = read(storage, path)
        if held is None:
            continue
        if held != seen:
            if seen is None and on_wait is not None and not is_gone(held["owner"]):
                on_wait(held["owner"])
            seen, since = held, time.monotonic()
        if is_gone(held["owner"]) or time.monotonic() - since > STALE_SECONDS:
            storage.remove_file(path)
        else:
            time.sleep(POLL_SECONDS)
    return False
