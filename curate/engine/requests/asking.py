"""A request to an endpoint on its way, and a URL that it may go to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from curate.core.spend import Spend
from curate.engine.requests.breaker import Breaker
from curate.engine.requests.deadline import Deadline
from curate.engine.requests.share import Cost


class BudgetUsedUpError(Exception):
    """The run's budget does not allow this request."""


class SuspectError(Exception):
    """While the request waited to start, it became one of those that may have brought a server down."""


class Owner(Protocol):
    """A unit that sends requests: how many wait to start or to be retried, and how many attempts have ended."""

    waiting: int
    ended: int


@dataclass(eq=False)
class Url:
    """One server of an endpoint."""

    base: str
    breaker: Breaker = field(default_factory=Breaker)
    in_flight: int = 0
    paused: float = 0.0
    """No request before this time: Retry-After."""
    answered: float = -math.inf
    """When it answered last."""
    falls: int = 0
    """How often it stopped answering."""

    def wait(self, now: float) -> float:
        """Seconds until it may get a request; infinite: until its probe has ended."""
        wait = self.breaker.wait(now)
        return math.inf if wait is None else max(wait, self.paused - now)


@dataclass(eq=False)
class Asking:
    """A request, and what has become of it so far."""

    owner: Owner
    path: str
    data: bytes
    headers: Mapping[str, str]
    deadline: Deadline
    attempts: int
    guess: Cost
    spend: Spend = field(default_factory=Spend)
    began: float | None = None
    """When the first attempt began."""
    failures: int = 0
    counted: int = 0
    """Failures that use up attempts."""
    blamed: int = 0
    failing_since: float = 0.0
    tried: set[Url] = field(default_factory=set)
    """URLs that failed in a row."""
    resets: set[tuple[Url, int]] = field(default_factory=set)
    """Attempts that ended in a reset: the URL, and how often it had fallen before."""
    free_reset: bool = True
    alone: bool = False
    """It holds `Pool._alone`."""
    pause: float = 0.0
    """Until the next attempt."""

    @property
    def deaths(self) -> int:
        """How many of its attempts ended when a server fell."""
        return sum(url.falls > before for url, before in self.resets)
