"""`curate limit`: a file beside the run's record changes the limits and ceilings of a running run, from any machine.

The driver checks for the file every few seconds, and its workers follow within a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from curate.core import shares
from curate.core.errors import InputError
from curate.core.store.storage import Storage

if TYPE_CHECKING:
    from curate.engine.record.runs import RunRecord
    from curate.engine.spending import Spending
    from curate.engine.workers.scheduler import Scheduler

RATES = ("requests_per_second", "bytes_per_second")
"""Limits of downloads."""
CEILINGS = ("max_tokens", "max_dollars")
ENDPOINTS = "endpoints"
"""Endpoint -> the limits below."""


def path(run_id: str) -> str:
    return f"runs/{run_id}/limits.json"


def request(storage: Storage, run_id: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Change some limits of a run (null: no limit); returns all that were changed so far."""
    before = requested(storage, run_id)
    found = {**before, **limits}
    if ENDPOINTS in limits:
        held = before.get(ENDPOINTS, {})
        found[ENDPOINTS] = held | {name: {**held.get(name, {}), **of} for name, of in limits[ENDPOINTS].items()}
    storage.publish_bytes(path(run_id), json.dumps(found, indent=1, sort_keys=True).encode())
    return found


def requested(storage: Storage, run_id: str) -> dict[str, Any]:
    """The limits that were changed."""
    try:
        return dict(storage.read_json(path(run_id)))
    except FileNotFoundError:
        return {}


def check(run: RunRecord, limits: Mapping[str, Any]) -> None:
    """Check ceilings and limits of endpoints against what a run asks. Raises InputError."""
    endpoints: dict[str, dict[str, Any]] = run.record.get("endpoints") or {}
    if not endpoints:
        raise InputError(f"run {run.run_id}: none of its stages asks an endpoint by name; it has no such limit")
    for name in limits.get(ENDPOINTS, {}):
        if name not in endpoints:
            known = ", ".join(sorted(endpoints))
            raise InputError(f"run {run.run_id}: asks no endpoint {name!r}; expected one of {known}")
    unpriced = sorted(name for name, about in endpoints.items() if about["price"] is None)
    if limits.get("max_dollars") is not None and unpriced:
        raise InputError(
            f"run {run.run_id}: endpoint {unpriced[0]} had no price when the run began; change --max-tokens instead"
        )


def apply(changed: Mapping[str, Any], workers: Scheduler, spending: Spending) -> None:
    """Apply changed limits to a run, in its driver. Those of downloads and endpoints wait for the run's limiter, which
    the first use starts."""
    spending.set(**{name: changed[name] for name in CEILINGS if name in changed})
    if workers.has_limiter:
        workers.limiter.set(**{name: changed[name] for name in RATES if name in changed})
        for name, limits in changed.get(ENDPOINTS, {}).items():
            workers.limiter.set(shares.ENDPOINTS + name, **limits)
