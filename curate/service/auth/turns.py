"""Turns of users at the threads of the server: each request that is being answered occupies one. A user who asks for
slow things waits for their own requests, and takes no thread from others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from curate.service.problems import TooManyProblem

WAITING = 100
"""Most requests of one user that wait."""


class Turns:
    """Used in one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._turns: dict[int, asyncio.Semaphore] = {}
        self.requests: Counter[int] = Counter()
        """User -> requests that have or await a turn."""

    @asynccontextmanager
    async def turn(self, user_id: int) -> AsyncIterator[None]:
        """Wait for a turn of the user, and hold it. Raises TooManyProblem if too many wait already."""
        waiting = self.requests[user_id] - self._most
        if waiting >= WAITING:
            raise TooManyProblem(f"{waiting} of your requests are waiting already; send fewer at a time", 5.0)
        self.requests[user_id] += 1
        try:
            async with self._turns.setdefault(user_id, asyncio.Semaphore(self._most)):
                yield
        finally:
            self.requests[user_id] -= 1
            if not self.requests[user_id]:
                del self.requests[user_id], self._turns[user_id]
