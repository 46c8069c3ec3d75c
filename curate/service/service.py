"""The parts of the service that actions use, built once per process."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from curate.service.auth.clock import now
from curate.service.auth.limiting import Limiter
from curate.service.auth.roles import Principal
from curate.service.cached import Cached
from curate.service.database.database import Database
from curate.service.kept import Kept
from curate.service.policy.sandbox import Sandbox
from curate.service.reconcile.targets import Targets
from curate.service.settings import Settings
from curate.service.watch.watch import Watch


@dataclass
class Service:
    settings: Settings
    database: Database
    targets: Targets
    """Clients of the Ray clusters, and their health as last seen."""
    sandbox: Sandbox
    """Checks and plans recipes in a limited process."""
    watch: Watch
    """Live status and events of runs, read once, however many watch."""
    kept: Kept = field(default_factory=Kept)
    """Results that take long, such as the storage of a workspace."""
    clock: Callable[[], float] = field(default=now)
    """For times that are stored; durations use a monotonic clock."""
    wake: Callable[[], None] = field(default=lambda: None)
    """Lets the reconciler of this process look at once, because a user has requested something."""
    alone: Principal | None = None
    """The only user, who needs no account: `curate view`."""
    csrf: str = field(default_factory=secrets.token_urlsafe, repr=False)
    """For that user's forms; other users have one per session."""
    limiter: Limiter = field(init=False)
    """Counts requests and failed logins."""
    thumbnails: Cached = field(init=False)
    maps: Cached = field(init=False)
    """Points, apart from the thumbnails, which they would displace."""

    def __post_init__(self) -> None:
        self.limiter = Limiter(self.settings.limits)
        self.thumbnails = Cached(self.settings.thumbnails, self.settings.limits.thumbnail_bytes)
        self.maps = Cached(None, self.settings.limits.thumbnail_bytes)

    @classmethod
    def of(cls, settings: Settings) -> Service:
        database = Database.of(settings)
        return cls(settings, database, Targets(), Sandbox(settings.limits), Watch(settings))

    def close(self) -> None:
        self.watch.close()
        self.sandbox.close()
        self.thumbnails.close()
        self.maps.close()
        self.targets.close()
        self.database.close()
