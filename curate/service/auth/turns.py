"""Turns of users at what they share: the threads of the server, of which each request that is being answered occupies
one, and the processes that check recipes. A user who asks for slow things waits for their own requests, in the event
loop, and takes no thread from others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from curate.service.problems import TooManyProblem

WAITING = 100
"""Most requests of one user that wait."""


class Turns:
    """Used in one event loop. `most`: turns of one user at a time; `overall`: of all users; `waiting`: requests of one
    user that wait for one, each at most `seconds`."""

    def __init__(
        self, most: int, *, overall: int | None = None, waiting: int = WAITING, seconds: float | None = None
    ) -> None:
        self._most, self._waiting, self._seconds = most, waiting, seconds
        self._turns: dict[int, asyncio.Semaphore] = {}
        self._overall = asyncio.Semaphore(overall or 1 << 30)
        self.requests: Counter[int] = Counter()
        """User -> requests that have or await a turn."""
        self.waiting: Counter[int] = Counter()
        """User -> those that await one."""

    @asynccontextmanager
    async def turn(self, user_id: int) -> AsyncIterator[None]:
        """Wait for a turn of the user, and hold it. Raises TooManyProblem if too many wait already, or for too long."""
        own = self._turns.setdefault(user_id, asyncio.Semaphore(self._most))
        waiting = self.waiting[user_id]
        if waiting >= self._waiting and (own.locked() or self._overall.locked()):
            raise TooManyProblem(f"{waiting} of your requests are waiting already; send fewer at a time", 5.0)
        self.requests[user_id] += 1
        try:
            async with AsyncExitStack() as held:
                self.waiting[user_id] += 1
                try:
                    async with asyncio.timeout(self._seconds):
                        await held.enter_async_context(own)
                        await held.enter_async_context(self._overall)
                except TimeoutError:
                    raise TooManyProblem(f"no turn within {self._seconds:g} s; try again later", 5.0) from None
                finally:
                    self.waiting[user_id] -= 1
                yield
        finally:
            self.requests[user_id] -= 1
            if not self.requests[user_id]:
                del self.requests[user_id], self.waiting[user_id], self._turns[user_id]
