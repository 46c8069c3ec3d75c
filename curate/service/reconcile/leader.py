"""Which replica acts: the holder of a row in the database.

The holder counts `beat` up; every other replica watches it by its own monotonic clock, and takes over when it has not
moved for 15 s. No clocks are compared. A holder that was paused may still act once before it notices; that is safe,
because every write is a compare-and-swap on the version of what it changes, and every action may be repeated.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from curate.service.database.database import Database, executed
from curate.service.database.models import Leader as LeaderRow
from curate.service.problems import Problem

TAKE_OVER_SECONDS = 15.0
SURE_SECONDS = 10.0
"""For so long after a renewal no other replica can have taken over."""


class Leader:
    """A candidate. For one thread, except `leads`."""

    def __init__(
        self, database: Database, name: str = "reconciler", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.database, self.name, self._clock = database, name, clock
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._renewed: float | None = None
        self._beat: tuple[str, int] | None = None
        """Holder and beat as last seen."""
        self._moved = clock()
        """When they were first seen so."""

    @property
    def leads(self) -> bool:
        """Whether it may act: it renewed so recently that no other replica can have taken over."""
        return self._renewed is not None and self._clock() - self._renewed < SURE_SECONDS

    @property
    def still(self) -> float | None:
        """Seconds since the beat of some holder was seen moving; None before any was seen."""
        return None if self._beat is None or not self._beat[0] else self._clock() - self._moved

    def renew(self) -> bool:
        """Renew the lease, or take it over if its beat has stopped. Whether this replica may act now."""
        began = self._clock()  # before the write, so that a slow one does not make the lease seem younger
        try:
            with self.database.write() as session:
                found = session.execute(
                    select(LeaderRow.holder, LeaderRow.beat).where(LeaderRow.name == self.name)
                ).one_or_none()
                if found is None:
                    session.execute(insert(LeaderRow).values(name=self.name, holder=self.holder, beat=1))
                    seen, won = (self.holder, 1), True
                else:
                    seen = (found.holder, found.beat)
                    won = self._may_take(seen, began) and self._swap(session, seen)
                    seen = (self.holder, seen[1] + 1) if won else seen
        except Problem:  # another replica was faster, or the database does not answer
            self._renewed = None
            return False
        if seen != self._beat:
            self._beat, self._moved = seen, self._clock()  # after the read, which may have waited for a writer
        self._renewed = began if won else None
        return won

    def resign(self) -> None:
        """Let another replica take over at once."""
        self._renewed = None
        try:
            with self.database.write() as session:
                mine = (LeaderRow.name == self.name, LeaderRow.holder == self.holder)
                session.execute(update(LeaderRow).where(*mine).values(holder="", beat=LeaderRow.beat + 1))
        except Problem:
            return  # the beat has stopped, which has the same effect after some seconds

    def _may_take(self, seen: tuple[str, int], now: float) -> bool:
        if seen[0] in (self.holder, ""):
            return True
        return seen == self._beat and now - self._moved >= TAKE_OVER_SECONDS

    def _swap(self, session: Session, seen: tuple[str, int]) -> bool:
        same = (LeaderRow.name == self.name, LeaderRow.holder == seen[0], LeaderRow.beat == seen[1])
        return executed(session, update(LeaderRow).where(*same).values(holder=self.holder, beat=seen[1] + 1))
