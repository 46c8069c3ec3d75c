"""A call: one function over payloads that come and end in any order, opened by a step, worked off by the scheduler."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from curate.core.contracts import Resources
from curate.engine.backends import How, Outcome

END = object()
"""What the scheduler says to a call after its last outcome."""
KEPT = 1000
"""Times that the median is of."""
AHEAD = 4


def ahead_of(slots: int) -> int:
    """Payloads of a lazy call that are made before an outcome is read: one per unit that runs, one that waits for it,
    and a few."""
    return 2 * slots + AHEAD


@dataclass(eq=False)
class Item:
    """One payload."""

    index: int
    payload: Any
    deaths: int = 0
    """How often a worker's process died while this ran in it, or hung in it."""
    moves: int = 0
    """How often the node of its worker died."""
    given: bool = False
    """A worker has had it, and may have begun it."""
    refusals: int = 0
    """How often it failed for a reason of its worker."""
    avoid: set[Any] = field(default_factory=set)
    """Workers where it did."""


class Call:
    """`put` payloads, `close`, and iterate over their outcomes. Only the step that opened it uses it."""

    def __init__(
        self,
        post: Callable[..., None],
        function: Callable[..., Any],
        resources: Resources,
        how: How,
        inbox: queue.Queue[Any] | None,
        label: str,
        ahead: int,
    ) -> None:
        self.function, self.resources, self.how, self.label = function, resources, how, label
        self.shared: Any = None
        """What the backend has made of `how.shared`."""
        self.closed = False
        self.work = Work(how, ahead)
        self.over = False
        """END was said."""
        self._post, self._inbox = post, inbox
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._count = self._read = 0

    def put(self, payload: Any) -> int:
        """Hand a payload over; returns its index, which its outcome will bear."""
        if self.closed:
            raise ValueError(f"{self.label}: the call is closed")
        index, self._count = self._count, self._count + 1
        self._post("put", self, Item(index, payload))
        return index

    def close(self) -> None:
        """No further payload comes."""
        if not self.closed:
            self.closed = True
            self._post("close", self)

    def cancel(self) -> None:
        """Drop what is waiting, and the outcomes of what is under way."""
        self.closed = True
        if not self.over:
            self._post("cancel", self)

    def room(self) -> int:
        """How many payloads more are of use now: so many are waiting, under way, or have an outcome nobody has read."""
        return max(0, self.work.ahead - (self._count - self._read))

    def next(self) -> Any:
        """The next outcome, or END. Raises the error that no other attempt could mend."""
        found = self._results.get()
        self._read += 1
        if found is not END and found.fatal is not None:
            raise found.fatal
        return found

    def __iter__(self) -> Iterator[Outcome]:
        while (found := self.next()) is not END:
            yield found

    # --- the scheduler's side ---

    def tell(self, what: Any) -> None:
        """An Outcome or END to whoever waits. An inbox gets (call, Outcome), and (call, None) in the end."""
        if self._inbox is None:
            self._results.put(what)
        else:
            self._read += 1
            self._inbox.put((self, None if what is END else what))


class Work:
    """The payloads of a call as the scheduler sees them; only its thread changes them."""

    def __init__(self, how: How, ahead: int) -> None:
        self.how, self.ahead = how, ahead
        self.running = 0
        self.waiting = 0
        self.times: deque[float] = deque(maxlen=KEPT)
        """Seconds of the last payloads whose tasks said nothing of batches."""
        self.closed = False
        """All payloads are here."""
        self.dropped = False
        """Cancelled or failed: nobody wants what still comes."""
        self.since = time.monotonic()
        """When a worker was last there for it."""
        self.homes: list[int] = []
        """Of a sticky call: seats among which payload i is for seat i modulo their number."""
        self._queues: list[deque[Item]] = [deque()]
        self._refused: list[Item] = []
        """Those that avoid a worker: for any other."""
        self._settled: set[int] = set()
        self._lowest = 0

    def settle_on(self, seats: list[int]) -> None:
        """Fix the seats of a sticky call."""
        items = self.clear()
        self.homes = seats
        self._queues = [deque() for _ in seats or [0]]
        for item in items:
            self.add(item)

    def add(self, item: Item, first: bool = False) -> None:
        self.waiting += 1
        if item.avoid:
            self._refused.append(item)
            return
        place = self._queues[item.index % len(self._queues)]
        place.appendleft(item) if first else place.append(item)

    def relent(self, workers: Collection[Any]) -> None:
        """What avoids all workers that there are is tried by them again, rather than wait for ever."""
        for item in [item for item in self._refused if item.avoid.issuperset(workers)]:
            self._refused.remove(item)
            self.waiting -= 1
            item.avoid.clear()
            self.add(item, first=True)

    def take(self, seat: int, worker: Any, absent: set[int]) -> Item | None:
        """The next payload for a seat: one that another has failed at, its own, else that of a seat that has been
        absent for long."""
        for item in self._refused:
            if worker not in item.avoid and not self._too_far(item.index):
                self._refused.remove(item)
                self.waiting -= 1
                return item
        if not self.homes:
            places = [0] if self.waiting else []
        else:
            places = [number for number, home in enumerate(self.homes) if home == seat]
            places += [number for number, home in enumerate(self.homes) if home in absent]
        for place in places:
            items = self._queues[place]
            if items and not self._too_far(items[0].index):
                self.waiting -= 1
                return items.popleft()
        return None

    def _too_far(self, index: int) -> bool:
        window = self.how.window
        return window is not None and index >= self._lowest + window * max(1, len(self.homes))

    def settle(self, index: int) -> None:
        if self.how.window is not None:
            self._settled.add(index)
            while self._lowest in self._settled:
                self._settled.remove(self._lowest)
                self._lowest += 1

    def clear(self) -> list[Item]:
        queued = (item for items in self._queues for item in items)
        items = sorted((*queued, *self._refused), key=lambda item: item.index)
        self._refused = []
        self._queues = [deque() for _ in self._queues]
        self.waiting = 0
        return items
