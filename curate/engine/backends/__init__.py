"""What the engine asks of a backend: run a function over payloads, somewhere, and say how each one ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from curate.core.contracts import Resources, Stage
from curate.core.errors import CurateError, StorageError
from curate.core.nouns import StoredArtifact
from curate.core.secrets import redact, redacted
from curate.core.storage import Storage

ATTEMPTS = 3
"""How often a payload is tried before it is a failure."""
BACKOFF_SECONDS = 0.5


@dataclass(frozen=True)
class Outcome:
    """How payload `index` ended: a value, or why there is none. `crashed`: its process died, every time."""

    index: int
    value: Any = None
    error: str | None = None
    crashed: bool = False


@dataclass(frozen=True)
class How:
    """How payloads are handed out."""

    isolated: bool = False
    """Each in a process that may die of it without taking others along."""
    sticky: bool = False
    """The same index goes to the same worker from call to call, while it lives."""
    window: int | None = None
    """At most so many payloads from the first unsettled one on are under way or settled, per worker."""
    shared: Any = None
    """A second argument of the function, the same for all payloads: sent once to each node."""


HOW = How()


class Backend(Protocol):
    name: str
    draining: threading.Event
    """Once set (SIGTERM), no further payload is started; those under way end and are told."""

    def slots(self, resources: Resources) -> int:
        """How many tasks with these resources run at a time."""
        ...

    def map(
        self,
        function: Callable[[Any], Any],
        payloads: Sequence[Any],
        resources: Resources,
        how: How = HOW,
    ) -> Iterator[Outcome]:
        """Outcomes as they come, in any order. An error that another attempt cannot mend (a CurateError but
        StorageError) is raised."""
        ...

    def broadcast(self, function: Callable[[Any], Any], payload: Any) -> None:
        """function(payload) in every worker that is there and idle, as far as that can be done."""
        ...

    def release(self) -> None:
        """Let idle workers go: somebody we wait for may need what they hold."""
        ...

    def close(self) -> None: ...


def attempt(function: Callable[..., Any], payload: Any, shared: Any = None) -> tuple[Any, str | None]:
    """(value, None), or (None, message) after the last attempt. Shared by all backends, inside the worker."""
    for number in range(1, ATTEMPTS + 1):
        try:
            return function(payload) if shared is None else function(payload, shared), None
        except StorageError as error:
            message = redact(str(error))
        except CurateError as error:
            redacted(error)
            raise
        except Exception as error:  # noqa: BLE001 - what a shard can do wrong has no list; the bound and the ledger keep it honest
            message = redact(f"{type(error).__name__}: {error}")
        if number < ATTEMPTS:
            time.sleep(BACKOFF_SECONDS * 2 ** (number - 1))
    return None, " ".join(message.split())


_ready: dict[str, tuple[Stage, Stage]] = {}
"""Place -> the stage as it was given, and its copy after `setup`."""
_lock = threading.Lock()


def set_up(
    key: str, stage: Stage, ports: Mapping[str, str], storage: Storage, keep: frozenset[str] = frozenset()
) -> Stage:
    """The stage after its `setup`, once per process, workspace and fingerprint; those outside of `keep` are let go.

    Runtime parameters are no part of a fingerprint, so the stage as it was written is compared too."""
    place = storage.url_of(key)
    with _lock:
        if place not in _ready or _ready[place][0] != stage:
            kept = {storage.url_of(name) for name in keep}
            for old in [name for name in _ready if name not in kept]:
                del _ready[old]
            fresh = stage.model_copy(deep=True)
            fresh.setup({port: StoredArtifact(storage, base) for port, base in ports.items()})
            _ready[place] = stage, fresh
        return _ready[place][1]
