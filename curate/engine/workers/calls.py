"""A call: one function over payloads. A step opens it, the scheduler runs its payloads, and outcomes come back in any
order."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from curate.core.contracts import Resources
from curate.engine.backends import CallOptions
from curate.engine.tasks.job import Outcome

END = object()
"""Sent to a call after its last outcome."""
KEPT = 1000
"""Durations that the median is taken over."""
AHEAD = 4


def ahead_of(slots: int) -> int:
    """Payloads that a lazy call makes before an outcome is read: one per running unit, one waiting for each, and a few
    more."""
    return 2 * slots + AHEAD


@dataclass(eq=False)
class Payload:
    """One payload and the history of its attempts."""

    index: int
    value: Any
    deaths: int = 0
    """Worker processes that died, or hung, while running it."""
    moves: int = 0
    """Workers that lost their node while running it."""
    given: bool = False
    """A worker received it and may have started it."""
    refusals: int = 0
    """Failures caused by the worker."""
    avoid: set[Any] = field(default_factory=set)
    """Workers that caused one."""


class Call:
    """`put` payloads, `close`, and iterate over the outcomes. Only the step that opened it uses it."""

    def __init__(
        self,
        post: Callable[..., None],
        function: Callable[..., Any],
        resources: Resources,
        options: CallOptions,
        inbox: queue.Queue[Any] | None,
        label: str,
        ahead: int,
    ) -> None:
        self.function, self.resources, self.options, self.label = function, resources, options, label
        self.shared: Any = None
        """The backend's handle of `options.shared`."""
        self.closed = False
        self.queue = CallQueue(options, ahead)
        self.over = False
        """END was sent."""
        self._post, self._inbox = post, inbox
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._count = self._read = 0

    def put(self, payload: Any) -> int:
        """Add a payload; returns the index of its outcome."""
        if self.closed:
            raise ValueError(f"{self.label}: the call is closed")
        index, self._count = self._count, self._count + 1
        self._post("put", self, Payload(index, payload))
        return index

    def close(self) -> None:
        """No further payload follows."""
        if not self.closed:
            self.closed = True
            self._post("close", self)

    def cancel(self) -> None:
        """Drop waiting payloads and the outcomes of running ones."""
        self.closed = True
        if not self.over:
            self._post("cancel", self)

    def room(self) -> int:
        """How many more payloads to put now, beside those that wait, run, or have an unread outcome."""
        return max(0, self.queue.ahead - (self._count - self._read))

    def next(self) -> Any:
        """The next outcome, or END. Raises an outcome's fatal error."""
        found = self._results.get()
        self._read += 1
        if found is not END and found.fatal is not None:
            raise found.fatal
        return found

    def __iter__(self) -> Iterator[Outcome]:
        while (found := self.next()) is not END:
            yield found

    # --- the scheduler's side ---

    def deliver(self, result: Any) -> None:
        """Pass on an Outcome or END. An inbox gets (call, Outcome), and (call, None) for END."""
        if self._inbox is None:
            self._results.put(result)
        else:
            self._read += 1
            self._inbox.put((self, None if result is END else result))


class CallQueue:
    """Payloads of a call as the scheduler sees them; only its thread changes them."""

    def __init__(self, options: CallOptions, ahead: int) -> None:
        self.options, self.ahead = options, ahead
        self.running = 0
        self.waiting = 0
        self.times: deque[float] = deque(maxlen=KEPT)
        """Seconds of the last payloads whose tasks reported no batches."""
        self.closed = False
        """All payloads have arrived."""
        self.dropped = False
        """Cancelled or failed: further outcomes are ignored."""
        self.since = time.monotonic()
        """When a worker was last available to it."""
        self.homes: list[int] = []
        """For a sticky call: worker numbers; payload i belongs to homes[i % len(homes)]."""
        self._queues: list[deque[Payload]] = [deque()]
        self._refused: list[Payload] = []
        """Payloads that avoid some worker; any other may take them."""
        self._settled: set[int] = set()
        self._lowest = 0

    def set_homes(self, homes: list[int]) -> None:
        """Fix the workers of a sticky call."""
        payloads = self.clear()
        self.homes = homes
        self._queues = [deque() for _ in homes or [0]]
        for payload in payloads:
            self.add(payload)

    def add(self, payload: Payload, first: bool = False) -> None:
        self.waiting += 1
        if payload.avoid:
            self._refused.append(payload)
            return
        place = self._queues[payload.index % len(self._queues)]
        place.appendleft(payload) if first else place.append(payload)

    def forgive(self, workers: Collection[Any]) -> None:
        """Payloads that avoid every existing worker may go to them again, because otherwise they would wait forever."""
        for payload in [payload for payload in self._refused if payload.avoid.issuperset(workers)]:
            self._refused.remove(payload)
            self.waiting -= 1
            payload.avoid.clear()
            self.add(payload, first=True)

    def take(self, number: int, worker: Any, absent: set[int]) -> Payload | None:
        """The next payload for a worker: first one that another worker failed at, then one that belongs to it, then
        one that belongs to a worker absent for long."""
        for payload in self._refused:
            if worker not in payload.avoid and not self._too_far(payload.index):
                self._refused.remove(payload)
                self.waiting -= 1
                return payload
        if not self.homes:
            places = [0] if self.waiting else []
        else:
            places = [place for place, home in enumerate(self.homes) if home == number]
            places += [place for place, home in enumerate(self.homes) if home in absent]
        for place in places:
            payloads = self._queues[place]
            if payloads and not self._too_far(payloads[0].index):
                self.waiting -= 1
                return payloads.popleft()
        return None

    def _too_far(self, index: int) -> bool:
        window = self.options.window
        return window is not None and index >= self._lowest + window * max(1, len(self.homes))

    def settle(self, index: int) -> None:
        if self.options.window is not None:
            self._settled.add(index)
            while self._lowest in self._settled:
                self._settled.remove(self._lowest)
                self._lowest += 1

    def clear(self) -> list[Payload]:
        queued = (payload for payloads in self._queues for payload in payloads)
        payloads = sorted((*queued, *self._refused), key=lambda payload: payload.index)
        self._refused = []
        self._queues = [deque() for _ in self._queues]
        self.waiting = 0
        return payloads
