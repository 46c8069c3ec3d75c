"""The requests of the test server and their times, which show how polite a client is."""

from __future__ import annotations

import heapq
import math
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from pipelines.serve import Request


@dataclass(slots=True)
class Visit:
    """A request. Times are of time.monotonic: its head had arrived; its last byte was about to be written."""

    request: Request
    peer: tuple
    """The client's address and port: one per connection."""
    start: float
    end: float | None = None
    """None: still being answered, or its connection was lost."""

    @property
    def host(self) -> str:
        return self.request.host

    @property
    def path(self) -> str:
        return self.request.path


@dataclass
class Log:
    """Visits in the order in which they started. The server's thread appends; any thread may read."""

    visits: list[Visit] = field(default_factory=list)

    def begin(self, request: Request, peer: tuple) -> Visit:
        visit = Visit(request, peer, time.monotonic())
        self.visits.append(visit)
        return visit

    def __iter__(self) -> Iterator[Visit]:
        return iter(list(self.visits))

    def __len__(self) -> int:
        return len(self.visits)

    def clear(self) -> None:
        self.visits.clear()

    def of(self, path: str) -> list[Visit]:
        """Visits of a path, or of a path with its query."""
        return [visit for visit in self if path in (visit.path, visit.request.target)]

    def per_host(self) -> Counter[str]:
        return Counter(visit.host for visit in self)

    def starts(self) -> dict[str, list[float]]:
        """Host -> times at which its requests started, ascending."""
        found = defaultdict(list)
        for visit in self:
            found[visit.host].append(visit.start)
        return dict(found)

    def most_at_once(self) -> dict[str, int]:
        """Host -> most requests in progress at one time. One that ends as another starts is over before it."""
        running: dict[str, list[float]] = defaultdict(list)
        most: dict[str, int] = Counter()
        for visit in sorted(self, key=lambda visit: visit.start):
            ends = running[visit.host]
            while ends and ends[0] <= visit.start:
                heapq.heappop(ends)
            heapq.heappush(ends, math.inf if visit.end is None else visit.end)
            most[visit.host] = max(most[visit.host], len(ends))
        return dict(most)

    def most_within(self, seconds: float) -> dict[str, int]:
        """Host -> most requests that started in any time of `seconds`, its end excluded."""
        return {
            host: max(bisect_left(times, first + seconds) - place for place, first in enumerate(times))
            for host, times in self.starts().items()
        }
