"""Schedulers over the local backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from curate.engine.backends.local import LocalBackend
from curate.engine.workers.scheduler import Scheduler
from tests.engine.workers.tasks import Doors


@pytest.fixture
def local(at_once: None) -> Iterator[Scheduler]:
    made = Scheduler(LocalBackend())
    yield made
    made.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    """Looks often, and takes a unit that does nothing for 1.5 seconds to hang."""
    made = Scheduler(LocalBackend(), deadline=1.5)
    yield made
    made.close()


@pytest.fixture
def doors() -> Iterator[Doors]:
    made = Doors()
    yield made
    made.open.set()
