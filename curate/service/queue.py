"""Which waiting run starts next, and why the others wait. Pure: the reconciler brings the facts.

Runs start by priority, then by how long they wait. A run that may not start does not block later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Waiting:
    """A queued run."""

    id: str
    user: str
    target: str
    priority: int = 0
    queued: float = 0.0
    """Since when it waits."""
    needs: Mapping[str, Any] = field(default_factory=dict)
    """{"gpus": most per task, "stage": the stage that needs them}."""
    held: str = ""
    """Why it may not start now; "" if the queue decides."""

    @property
    def order(self) -> tuple[int, float, str]:
        return -self.priority, self.queued, self.id


@dataclass(frozen=True)
class Active:
    """A run that occupies its target."""

    user: str
    target: str


@dataclass(frozen=True)
class Allowance:
    """What one user may use. None: no limit."""

    running: int | None = None
    gpu_hours: float | None = None
    used: float = 0.0
    """GPU-hours of the last 30 days."""

    @property
    def spent(self) -> str:
        """Why they may use no GPU any more; "" if they may."""
        if self.gpu_hours is None or self.used < self.gpu_hours:
            return ""
        return f"has used {self.used:.1f} of {self.gpu_hours:g} GPU-hours in 30 days"


@dataclass(frozen=True)
class Place:
    """A target. `gpus`: all that it has; None before it has answered for the first time."""

    max_runs: int
    healthy: bool = True
    error: str = ""
    gpus: float | None = None
    max_gpus: float = 0.0
    """GPUs that it can scale up to."""


@dataclass(frozen=True)
class Verdict:
    start: bool
    why: str
    """Why it waits, in one line; "" if it starts."""


def choose(
    waiting: Iterable[Waiting], active: Iterable[Active], quotas: Mapping[str, Allowance], targets: Mapping[str, Place]
) -> dict[str, Verdict]:
    """Run -> verdict. `quotas`: by user; a user without one has no limits."""
    running: Counter[tuple[str, str]] = Counter()
    for busy in active:
        running["target", busy.target] += 1
        running["user", busy.user] += 1
    found: dict[str, Verdict] = {}
    for run in sorted(waiting, key=lambda run: run.order):
        why = run.held or _blocked(run, running, quotas.get(run.user, Allowance()), targets.get(run.target))
        if not why:
            running["target", run.target] += 1
            running["user", run.user] += 1
        found[run.id] = Verdict(not why, why)
    return found


def _blocked(run: Waiting, running: Counter[tuple[str, str]], quota: Allowance, target: Place | None) -> str:
    """Why a run may not start, beginning with what lasts longest; "" if it may."""
    if target is None:
        return f"waits: target {run.target} does not exist"
    return (
        _unfit(run, target)
        or _over_quota(run, quota, running["user", run.user])
        or _full(run.target, running["target", run.target], target.max_runs)
    )


def _unfit(run: Waiting, target: Place) -> str:
    gpus = float(run.needs.get("gpus") or 0)
    if not target.healthy:
        error = f" ({target.error})" if target.error else ""
        return f"waits: target {run.target} does not answer{error}"
    if target.gpus is None:
        return f"waits: target {run.target} has not been checked yet"
    most = max(target.gpus, target.max_gpus)
    if gpus <= most:
        return ""
    stage = run.needs.get("stage")
    has = "no GPU" if most == 0 else f"{most:g} GPU{'s' if most != 1 else ''}"
    return f"waits: target {run.target} has {has}, {f'its stage {stage}' if stage else 'it'} needs {gpus:g}"


def _over_quota(run: Waiting, quota: Allowance, running: int) -> str:
    if quota.spent:
        return f"waits: {run.user} {quota.spent}"
    if quota.running is not None and running >= quota.running:
        return f"waits: {run.user} has {running} of {quota.running} runs under way"
    return ""


def _full(name: str, running: int, most: int) -> str:
    return f"waits: target {name} has {running} of {most} runs under way" if running >= most else ""
