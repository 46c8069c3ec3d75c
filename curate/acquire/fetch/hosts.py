"""Which row a thread fetches next, so that no host gets more requests than it may and no thread waits for a busy one.

hosts = Hosts(settings, limiter)                # limiter: the run's, or None if this runner is alone
for row, host in portion:
    hosts.add(row, host)                        # all rows first: `row` is hashable, `host` the name in lower case
while (row := hosts.next()) is not None:        # in each thread; blocks until the host of some row is free
    if hosts.parked(row): ...                   # its host asked for more time than a row has: answer without a request
    ...                                         # one request to that host
    hosts.park(host, 30.0)                      # Retry-After: no start before, in any runner of the run
    hosts.move(row, other, seconds)             # one more request: a retry (same host) or a redirect (another)
    hosts.done(row, size)                       # size: bytes received in all

Every request is announced, by `next` or by `move`: it counts at its host and for the run. A row has one slot, at the
host that it talks to. While `move` waits for another host, the row keeps the slot it has, so that at most
`host_connections` threads wait per host that redirects; it goes ahead of the other host's rows.

Limits of a host: `host_connections` requests at once and `host_rate` starts per second (see `Pace`). Limits of the run:
`requests_per_second` and `bytes_per_second`. With a limiter, they are those of the whole run, which it deals to all of
its runners; a host that it has not granted has no slots here. When a row starts, it is charged the mean bytes of
earlier rows, which is corrected when it is done.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Hashable, Mapping
from typing import Any

from curate.acquire.fetch.grants import PREFIX, Grants
from curate.acquire.fetch.line import Host, Line
from curate.core.pace import Pace
from curate.core.shares import STAGES, ShareClient

FIRST_BYTES = 64 * 2**10
"""What a row is taken to receive before any is done."""
MEAN_OF = 100
"""Number of recent rows over which the mean size is taken, about."""
MOVE_SECONDS = 5.0
"""How long `move` waits unless told otherwise."""
RATES = ("requests_per_second", "bytes_per_second")


class Hosts:
    """See the top of the file. Any thread may call. LimiterGoneError: here, and from `next` and `move`.

    settings: those of acquire.download; missing ones have its defaults. limiter: where it answers, with its host, port
    and key, and as `room` the name of the stage."""

    def __init__(self, settings: Mapping[str, Any], limiter: Mapping[str, Any] | None = None) -> None:
        slots: int = settings.get("host_connections", 4)
        self._slots = slots if limiter is None else 0
        self._rate: float | None = settings.get("host_rate")
        limits = {rate: settings.get(rate) for rate in RATES}
        self._shares = limits if limiter is None else dict.fromkeys(RATES, 0.0)
        self._requests, self._bytes = self._paces = [Pace(self._shares[rate]) for rate in RATES]
        self._client: ShareClient | None = None
        if limiter is not None:
            self._requests.take(0.0)  # clients that join at once do not start at once
            one = {"seats": slots} if self._rate is None else {"seats": 1, "pause": 1.0 / self._rate}
            described = {**{rate: {"limit": limit} for rate, limit in limits.items()}, "host": {"limit": slots, **one}}
            self._client = ShareClient(limiter, STAGES + limiter["room"], described, self._ask_limiter, self._heard)
        patience: float = settings.get("deadline_seconds", 60.0)
        self._line = Line(max(patience, 2.0 / self._rate) if self._rate else patience)
        self._grants = Grants(settings.get("thread_count", 64))
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        """Threads that wait until a row is free."""
        self._idle_threads = 0
        self._timer = threading.Condition(self._lock)
        """The one thread among them that also waits for the clock."""
        self._timed_until: float | None = None
        self._hosts: dict[str, Host] = {}
        self._running: dict[Hashable, tuple[Host, float | None]] = {}
        """Row -> its host, bytes charged. None: it has no slot, since its host is parked."""
        self._places = 0
        self._mean_bytes = float(FIRST_BYTES)
        if self._client is not None:
            self._client.start()
            self._client.ready.wait()
            if self.error is not None:
                raise self.error

    @property
    def error(self) -> Exception | None:
        """Why no more rows can start: the limiter is gone."""
        return self._client.error if self._client is not None else None

    def add(self, row: Hashable, host: str) -> None:
        """Hand a row over. Among rows whose hosts are free, the one added first goes first."""
        with self._lock:
            if not self._line.rows and not self._running:
                self._forget()
            self._places += 1
            there, now = self._host(host), time.monotonic()
            self._line.add(there, self._places, row, now)
            self._ask(there)
            self._wake(now)

    def next(self) -> Any:
        """The next row, its request counted; None if no row is left."""
        with self._lock:
            while True:
                now = time.monotonic()
                row = self._start(now)
                if row is not None or not self._line.rows:
                    self._wake(now)
                    return row
                self._wait(now)

    def move(self, row: Hashable, host: str, seconds: float = MOVE_SECONDS) -> bool:
        """One more request for a row in progress, at its host or another; waits until it may start. False: not within
        `seconds`; the row still has the slot it had."""
        with self._lock:
            before, charged = self._running[row]
            there = self._host(host)
            turn = threading.Condition(self._lock)
            if there is before:
                there.movers.appendleft(turn)  # those ahead may wait for the slot that it has
            else:
                there.movers.append(turn)
                self._ask(there, urgent=True)
            try:
                if not self._wait_to_move(there, turn, there is before, time.monotonic() + seconds):
                    return False
                self._count(there, time.monotonic())
                if there is not before:
                    there.active += 1
                    self._running[row] = there, charged
                    before.active -= 1
                    self._freed(before)
                return True
            finally:
                there.movers.remove(turn)
                self._freed(there)

    def done(self, row: Hashable, size: int = 0) -> None:
        """A row is finished. `size`: bytes received for it."""
        with self._lock:
            host, charged = self._running.pop(row)
            if charged is None:
                return
            self._bytes.take(time.monotonic(), size - charged)
            self._mean_bytes += (size - self._mean_bytes) / MEAN_OF
            host.active -= 1
            self._freed(host)
            self._wake(time.monotonic())

    def park(self, host: str, seconds: float) -> None:
        """No request to a host for so long, in this runner and, after its next exchange, in all others."""
        with self._lock:
            there, now = self._host(host), time.monotonic()
            there.parked = max(there.parked, now + seconds)
            self._moved(there, now)

    def parked(self, row: Hashable) -> float:
        """Seconds for which the host of a row in progress is parked, if the row must make no request: `next` returns
        rows at once that would wait for longer than a row's deadline. 0: it may make requests."""
        with self._lock:
            host, charged = self._running[row]
            return host.parked - time.monotonic() if charged is None else 0.0

    def close(self) -> None:
        """End the connection to the limiter. No call may follow."""
        if self._client is not None:
            self._client.close()
            self._client.join()

    def _host(self, name: str) -> Host:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(name, self._slots, self._rate)
        return host

    def _start(self, now: float) -> Hashable | None:
        """The first row that may start now, counted."""
        if self.error is not None:
            raise self.error
        if self._pause(now) > 0.0:
            return None
        found = self._line.pop(now)
        if found is None:
            if self._client is not None and self._grants.waits:
                self._client.hurry()
            return None
        host, row = found
        if self._line.given_up(host, now):
            self._running[row] = host, None
        else:
            host.active += 1
            self._count(host, now)
            self._bytes.take(now, self._mean_bytes)
            self._running[row] = host, self._mean_bytes
        self._line.update(host, now)
        return row

    def _count(self, host: Host, now: float) -> None:
        host.pace.take(now)
        self._requests.take(now)

    def _pause(self, now: float) -> float:
        """Seconds until the run's limits allow a start."""
        if self._client is not None and now > self._client.valid:
            return math.inf
        return max(self._requests.wait(now), self._bytes.wait(now))

    def _wait(self, now: float) -> None:
        """Until a row may be free. One thread waits for the clock, the others until one that leaves wakes them."""
        if self._timed_until is not None:
            self._idle_threads += 1
            self._idle.wait()
            self._idle_threads -= 1
            return
        self._timed_until = max(now + self._pause(now), now if self._line.free(now) else self._line.soonest())
        self._timer.wait(None if self._timed_until == math.inf else self._timed_until - now)
        self._timed_until = None

    def _wake(self, now: float) -> None:
        """Wake who has something to do: a thread per call, which calls this too when it has a row."""
        if not self._line.rows or self.error is not None:
            self._idle.notify_all()
            self._timer.notify_all()
        elif self._timed_until is None or (self._idle_threads and self._line.free(now)):
            self._idle.notify()
        elif self._line.free(now) or self._line.soonest() < self._timed_until:
            self._timer.notify()

    def _wait_to_move(self, host: Host, turn: threading.Condition, has_slot: bool, until: float) -> bool:
        while True:
            if self.error is not None:
                raise self.error
            now = time.monotonic()
            when = math.inf
            if host.movers[0] is turn and (has_slot or host.active < host.limit):
                when = max(host.allows(now), now + self._pause(now))
            if when <= now:
                return True
            if now >= until or until < when < math.inf:
                return False
            turn.wait(min(when, until) - now)

    def _freed(self, host: Host) -> None:
        """A slot is free, or a limit is higher."""
        if host.movers:
            host.movers[0].notify()
        elif host.rows:
            now = time.monotonic()
            self._line.update(host, now)
            self._wake(now)

    def _moved(self, host: Host, now: float) -> None:
        """What is known of a host has changed."""
        self._line.update(host, now, moved=True)
        if host.movers:
            host.movers[0].notify()
        self._wake(now)

    def _forget(self) -> None:
        """Drop hosts that nothing is known of, or wanted from."""
        now = time.monotonic()
        for name, host in list(self._hosts.items()):
            if host.unused and not (host.asked or host.granted) and host.allows(now) <= now:
                del self._hosts[name]

    def _ask(self, host: Host, urgent: bool = False) -> None:
        if self._client is not None:
            self._grants.add(host, urgent)
            self._client.hurry()

    # --- in the thread of the limiter's client ---

    def _ask_limiter(self) -> dict[str, Any]:
        with self._lock:
            busy = bool(self._line.rows or self._running)
            asks = {rate: {"holds": share or 0.0, "needs": int(busy)} for rate, share in self._shares.items()}
            return {"busy": busy, "asks": asks | self._grants.asks(time.monotonic())}

    def _heard(self, answer: Mapping[str, Any] | None) -> None:
        with self._lock:
            now = time.monotonic()
            shares = dict(answer["shares"]) if answer is not None else {}
            for rate, pace in zip(RATES, self._paces, strict=True):
                self._shares[rate] = shares.pop(rate, [self._shares[rate]])[0]
                pace.change(self._shares[rate], now)
            seats = {name.removeprefix(PREFIX): share for name, share in shares.items()}
            for host in self._grants.heard(seats, now):
                self._line.update(host, now, moved=True)
            self._wake_all()

    def _wake_all(self) -> None:
        """Each waiting thread looks again."""
        self._idle.notify_all()
        self._timer.notify_all()
        for host in self._hosts.values():
            if host.movers:
                host.movers[0].notify()
