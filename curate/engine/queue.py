"""Which worker does what next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


class Queue:
    """Payloads 0 .. n - 1, waiting for workers. `sticky`: payload i is for worker i modulo their number, so that the
    same call finds what the last one left there. `window`: only the next so many after the lowest that is not settled
    may be under way, so that results that are wanted in order do not pile up."""

    def __init__(self, payloads: int, workers: int, sticky: bool = False, window: int | None = None) -> None:
        lanes = workers if sticky else 1
        self._waiting = [deque(range(lane, payloads, lanes)) for lane in range(lanes)]
        self._window = window
        self._settled: set[int] = set()
        self._lowest = 0

    def __bool__(self) -> bool:
        return any(self._waiting)

    def take(self, worker: int, absent: Sequence[int] = ()) -> int | None:
        """The next payload for a worker: of its own, else of one that has been `absent` for long."""
        for lane in (worker, *absent):
            waiting = self._waiting[lane % len(self._waiting)]
            if waiting and (self._window is None or waiting[0] < self._lowest + self._window):
                return waiting.popleft()
        return None

    def give_back(self, worker: int, payloads: Iterable[int]) -> None:
        """Payloads that a worker had and did not end, in their order."""
        self._waiting[worker % len(self._waiting)].extendleft(reversed(list(payloads)))

    def settle(self, payload: int) -> None:
        self._settled.add(payload)
        while self._lowest in self._settled:
            self._settled.remove(self._lowest)
            self._lowest += 1

    def clear(self) -> None:
        for waiting in self._waiting:
            waiting.clear()
