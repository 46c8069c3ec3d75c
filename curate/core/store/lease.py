"""Leases save work; they are not what makes outputs right (create-if-absent is).

A run that builds an output holds a small file with its owner and a heartbeat. A second run that wants the same output
waits until the manifest appears or the lease goes stale: its process is gone (same host), or its heartbeat stood still.
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
"""Clocks of two hosts may differ: by the clock, a heart is still only after this many times STALE_SECONDS."""
POLL_SECONDS = 0.25
LOOK_SECONDS = 3 * BEAT_SECONDS
"""How long who cannot trust another host's clock watches a heart."""
DAY_SECONDS = 86400.0
"""No clock is wrong by more."""


@lru_cache(maxsize=1)
def owner() -> dict[str, Any]:
    """Who this process is, told apart from a later process with the same number."""
    return {"host": socket.gethostname(), "boot": psutil.boot_time(), "pid": os.getpid(), "born": _born(os.getpid())}


os.register_at_fork(after_in_child=owner.cache_clear)


def _born(pid: int) -> float | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def is_gone(holder: dict[str, Any]) -> bool:
    """The holder ran on this host and its process has ended."""
    mine = owner()
    if holder["host"] != mine["host"]:
        return False
    return abs(holder["boot"] - mine["boot"]) > 5 or _born(holder["pid"]) != holder["born"]


def is_dead(held: dict[str, Any]) -> bool:
    """What who only looks once can tell of a lease: its process is gone (same host), or it is long silent by the clock
    (another host)."""
    if held["owner"]["host"] == owner()["host"]:
        return is_gone(held["owner"])
    return bool(time.time() - held.get("time", time.time()) > SKEW_FACTOR * STALE_SECONDS)


class Watch:
    """Watches a holder's heartbeat from anywhere. It compares beats, never the clocks of two hosts."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage, self.path = storage, path
        self._seen: dict[str, Any] | None = None
        self._since = 0.0

    def look(self) -> bool | None:
        """Whether the holder is alive; None while that cannot be told: its heart has not beaten since the first look,
        STALE_SECONDS ago at most."""
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
    """Whether somebody holds a lease. A holder on another host whose clock seems off is watched for LOOK_SECONDS."""
    held = read(storage, path)
    if held is None:
        return False
    if held["owner"]["host"] == owner()["host"]:
        return not is_gone(held["owner"])
    behind = time.time() - float(held.get("time", 0.0))
    if 0 <= behind <= SKEW_FACTOR * STALE_SECONDS or behind > DAY_SECONDS:
        return behind <= DAY_SECONDS
    watch, until = Watch(storage, path), time.monotonic() + LOOK_SECONDS
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
    """Hold the lease on an output while building it. Yields False, without it, once `done()` (another built it)."""
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
        with contextlib.suppress(Exception):  # each file system has errors of its own, and none may stop the heart
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
