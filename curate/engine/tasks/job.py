"""One payload as a worker receives it, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from curate.engine.tasks.beat import RunningBatch

ATTEMPTS = 3
"""How often a payload is tried before it counts as failed."""


@dataclass(frozen=True)
class Job:
    """One payload as a worker receives it."""

    function: Callable[..., Any]
    payload: Any
    index: int
    unit: str
    """Name of the task in logs and progress."""
    lane: str
    isolated: bool = False
    run: str = ""
    again: bool = False
    """A worker received this payload before and may have started it."""
    log: tuple[str, str, str] | None = None
    """(workspace, run, worker name) to log under, if the worker is not in the scheduler's process."""


@dataclass(frozen=True)
class Outcome:
    """Result of payload `index`: a value or an error. `crashed`: its process died in every attempt."""

    index: int
    value: Any = None
    error: str | None = None
    crashed: bool = False
    hung: RunningBatch | None = None
    """The batch that did not finish in time; the task was ended."""
    elsewhere: bool = False
    """The worker is at fault, such as by a full disk; another worker may succeed."""
    fatal: BaseException | None = None
    """No other attempt can succeed, for this payload or any other: the step that opened the call raises it."""
