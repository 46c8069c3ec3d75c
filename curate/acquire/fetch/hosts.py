"""Which row a thread fetches next, so that no host gets more requests than it may and no thread waits for a busy one.

hosts = Hosts(settings, limits)                 # limits: the run's, or None if this runner is alone
for row, host in portion:
    hosts.add(row, host)                        # all rows first: `row` is hashable, `host` the name in lower case
while (row := hosts.next()) is not None:        # in each thread; blocks until the host of some row is free
    if hosts.parked(host) > deadline: ...       # the host asked for more time than a row has: answer without a request
    ...                                         # one request to that host
    hosts.park(host, 30.0)                      # Retry-After: no start before, in any runner of the run
    if hosts.move(row, other, seconds): ...     # one more request: a retry (same host) or a redirect (another)
    else: hosts.later(row, other)               # or give it back: next() returns it when `other` is free
    hosts.done(row, size)                       # size: bytes received in all

Every request is announced, by `next` or by `move`: it counts at its host and for the run. A row has one slot, at the
host that it talks to. While `move` waits for another host, the row keeps the slot it has, so that at most
`host_connections` threads wait per host that redirects; it goes ahead of the other host's rows.

Limits of a host: `host_connections` requests at once and `host_rate` starts per second (see `Pace`). Limits of the run:
`requests_per_second` and `bytes_per_second`. With `limits`, they are those of the whole run, dealt to its runners by
curate/engine/workers/limiter.py; a host without a grant has no slots here. When a row starts, it is charged the mean
bytes of earlier rows, which is corrected when it is done.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Hashable, Mapping
from typing import Any

from curate.acquire.fetch.grants import Grants
from curate.acquire.fetch.line import Host, Line
from curate.core.limits import VALID_SECONDS, Limits, LimitSettings
from curate.core.pace import Pace

FIRST_BYTES = 64 * 2**10
"""What a row is taken to receive before any is done."""
MEAN_OF = 100
"""Number of recent rows over which the mean size is taken, about."""
MOVE_SECONDS = 5.0
"""How long `move` waits unless told otherwise."""
IDLE_SECONDS = 1.0
"""Between exchanges with the limiter while there are no rows."""
CLOSE_SECONDS = 2.0
HURRY_SECONDS = 0.02
"""Between exchanges at least, when threads wait for hosts that were not asked for yet."""


class Hosts:
    """See the top of the file. Any thread may call. If the limiter is gone, `next` and `move` raise LimiterGoneError.

    settings: those of acquire.download; missing ones have its defaults."""

    def __init__(self, settings: Mapping[str, Any], limits: Limits | None = None) -> None:
        own = LimitSettings.of(settings)
        shared = limits is not None
        self._limits = limits
        self._slots = 0 if shared else own.host_connections
        self._rate = None if shared else own.host_rate
        self._requests = Pace(0.0 if shared else own.requests_per_second)
        self._bytes = Pace(0.0 if shared else own.bytes_per_second)
        self._valid = 0.0 if shared else math.inf
        """No request may start after this time."""
        if shared:
            self._requests.take(0.0)  # clients that join at once do not start at once
        self._line = Line(settings.get("deadline_seconds", 60.0))
        self._grants = Grants(settings.get("thread_count", 64))
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        """Threads that wait until a row is free."""
        self._idle_threads = 0
        self._timer = threading.Condition(self._lock)
        """The one thread among them that also waits for the clock."""
        self._timed_until: float | None = None
        self._hosts: dict[str, Host] = {}
        self._running: dict[Hashable, tuple[Host | None, int, float]] = {}
        """Row -> its host, place in the list, bytes charged. No host: it has no slot, since its host is parked."""
        self._places = 0
        self._mean_bytes = float(FIRST_BYTES)
        self._error: Exception | None = None
        self._closed = False
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._exchange, name="limits", daemon=True)
        if shared:
            self._thread.start()

    @property
    def error(self) -> Exception | None:
        """Why no more rows can start: the limiter is gone."""
        return self._error

    def add(self, row: Hashable, host: str) -> None:
        """Hand a row over. Among rows whose hosts are free, the one added first goes first."""
        with self._lock:
            if not self._line.rows and not self._running:
                self._forget()
            self._places += 1
            self._queue(row, self._places, host)

    def next(self) -> Any:
        """The next row, its request counted; None if no row is left (one may come back by `later`)."""
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
            before, place, charged = self._running[row]
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
                    self._running[row] = there, place, charged
                    if before is not None:
                        before.active -= 1
                        self._freed(before)
                return True
            finally:
                there.movers.remove(turn)
                self._freed(there)

    def later(self, row: Hashable, host: str) -> None:
        """Give a row in progress back: `next` returns it when `host` is free, before rows later in the list."""
        with self._lock:
            place = self._running[row][1]
            self.done(row)
            self._queue(row, place, host)

    def done(self, row: Hashable, size: int = 0) -> None:
        """A row is finished. `size`: bytes received for it."""
        with self._lock:
            host, _, charged = self._running.pop(row)
            if host is None:
                return
            self._bytes.take(time.monotonic(), size - charged)
            self._mean_bytes += (size - self._mean_bytes) / MEAN_OF
            host.active -= 1
            self._freed(host)
            self._wake(time.monotonic())

    def park(self, host: str, seconds: float) -> None:
        """No request to a host for so long, in this runner and, after its next exchange, in all others."""
        with self._lock:
            self._hold(self._host(host), seconds)
            if self._limits is not None:
                self._grants.park(host, seconds)

    def parked(self, host: str) -> float:
        """Seconds until a host may be asked again. If they exceed a row's deadline, `next` returns the host's rows at
        once: they have no slot and must make no request."""
        with self._lock:
            known = self._hosts.get(host)
            return max(0.0, known.parked - time.monotonic()) if known is not None else 0.0

    def close(self) -> None:
        """End the connection to the limiter. No call may follow."""
        if self._limits is not None:
            self._closed = True
            self._hurry.set()
            self._thread.join(CLOSE_SECONDS)
            if not self._thread.is_alive():
                self._limits.close()

    def _host(self, name: str) -> Host:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(name, self._slots, self._rate)
        return host

    def _queue(self, row: Hashable, place: int, name: str) -> None:
        host, now = self._host(name), time.monotonic()
        self._line.add(host, place, row, now)
        self._ask(host)
        self._wake(now)

    def _start(self, now: float) -> Hashable | None:
        """The first row that may start now, counted."""
        if self._error is not None:
            raise self._error
        if self._pause(now) > 0.0:
            return None
        found = self._line.pop(now)
        if found is None:
            if self._grants.waits:
                self._hurry.set()
            return None
        host, place, row = found
        if self._line.given_up(host, now):
            self._running[row] = None, place, 0.0
        else:
            host.active += 1
            self._count(host, now)
            self._bytes.take(now, self._mean_bytes)
            self._running[row] = host, place, self._mean_bytes
        self._line.update(host, now)
        return row

    def _count(self, host: Host, now: float) -> None:
        host.pace.take(now)
        self._requests.take(now)

    def _pause(self, now: float) -> float:
        """Seconds until the run's limits allow a start."""
        if now > self._valid:
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
        if not self._line.rows or self._error is not None:
            self._idle.notify_all()
            self._timer.notify_all()
        elif self._timed_until is None or (self._idle_threads and self._line.free(now)):
            self._idle.notify()
        elif self._line.free(now) or self._line.soonest() < self._timed_until:
            self._timer.notify()

    def _wait_to_move(self, host: Host, turn: threading.Condition, has_slot: bool, until: float) -> bool:
        while True:
            if self._error is not None:
                raise self._error
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

    def _hold(self, host: Host, seconds: float) -> None:
        now = time.monotonic()
        host.parked = max(host.parked, now + seconds)
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
        if self._limits is not None:
            self._grants.add(host, urgent)
            self._hurry.set()

    def _exchange(self) -> None:
        """Thread that talks to the limiter."""
        assert self._limits is not None
        while not self._closed:
            self._hurry.clear()
            try:
                seconds = self._exchange_once(self._limits)
            except Exception as error:  # noqa: BLE001 - after a bug, too, the other threads would wait forever
                with self._lock:
                    self._error = error
                    self._wake_all()
                return
            time.sleep(HURRY_SECONDS)
            self._hurry.wait(seconds - HURRY_SECONDS)

    def _exchange_once(self, limits: Limits) -> float:
        """Returns seconds until the next exchange."""
        began = time.monotonic()
        with self._lock:
            busy = bool(self._line.rows or self._running)
            message = self._grants.report(began, busy)
        answer = limits.exchange(message)
        with self._lock:
            self._apply(answer, began)
        return answer["seconds"] if busy else IDLE_SECONDS

    def _apply(self, answer: Mapping[str, Any], began: float) -> None:
        now = time.monotonic()
        self._valid = began + VALID_SECONDS
        self._requests.change(answer["requests"], now)
        self._bytes.change(answer["bytes"], now)
        for host in self._grants.apply(answer["grant"], now):
            self._line.update(host, now, moved=True)
        for name, seconds in answer["park"].items():
            self._hold(self._host(name), seconds)
        self._wake_all()

    def _wake_all(self) -> None:
        """Each waiting thread looks again."""
        self._idle.notify_all()
        self._timer.notify_all()
        for host in self._hosts.values():
            if host.movers:
                host.movers[0].notify()
