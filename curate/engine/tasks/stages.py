"""Stages that are set up in this process, such as loaded models."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TypeVar
from weakref import WeakKeyDictionary

from curate.core.contracts import Stage
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.store.storage import Storage
from curate.engine.tasks import beat

AnyStage = TypeVar("AnyStage", bound=Stage)

_ready: dict[str, dict[str, tuple[Stage, Stage]]] = {}
"""Lane -> URL of the output -> the stage as configured, and its copy after `setup`."""
_locks: dict[str, threading.RLock] = {}
_keeping: WeakKeyDictionary[beat.Beat, set[str]] = WeakKeyDictionary()
"""Outputs whose stages the running tasks use."""
_guard = threading.Lock()


def set_up(
    output: str, stage: AnyStage, ports: Mapping[str, str], storage: Storage, keep: frozenset[str] = frozenset()
) -> AnyStage:
    """The stage after its `setup`, which runs once per process, lane and output. A stage is dropped if its output is
    not in `keep` and no other task of the lane keeps it.

    Runtime parameters are not part of a fingerprint, so the configured stage is compared too."""
    mine = beat.current()
    place, wanted = storage.url_of(output), {storage.url_of(name) for name in keep}
    with _guard:
        lock, ready = _locks.setdefault(mine.lane, threading.RLock()), _ready.setdefault(mine.lane, {})
        _keeping.setdefault(mine, set()).update(wanted, [place])
    with mine.setting_up(stage.op), lock:
        mine.moved = time.monotonic()  # the wait for the lock is over
        if place not in ready or ready[place][0] != stage:
            with _guard:
                kept = set().union(*(places for task, places in _keeping.items() if task.lane == mine.lane))
            for old in [name for name in ready if name not in kept or name == place]:
                del ready[old]
            fresh = stage.model_copy(deep=True)
            fresh.setup({port: StoredArtifact(storage, base) for port, base in ports.items()})
            ready[place] = stage, fresh
        found = ready[place][1]
        assert isinstance(found, type(stage))
        return found
