"""What lists of runs need, from as few files as possible: no events of a run that has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from curate.core.errors import LOST, InputError
from curate.core.ledger import Entry
from curate.core.store import lease
from curate.core.store.storage import Storage
from curate.engine.record import stop
from curate.engine.record.runs import RunRecord, ended_as

HOUR = 3600.0
STARTING_SECONDS = 60.0
"""A run without result and heartbeat counts as starting for this long, also if clocks differ somewhat."""


@dataclass(frozen=True)
class Attempt:
    """What the workspace says about a run that was submitted."""

    id: str
    state: str
    """none: its driver has written no file; refused: an error kept it from starting; open: it began, or its cluster is
    lost; or its result: done, failed, stopped."""
    error: str = ""


@dataclass(frozen=True)
class RunSummary:
    id: str
    state: str
    """done, failed, stopped, running, killed; for one that has not started: submitted, refused."""
    error: str = ""
    engine: str = ""
    started: float | None = None
    """Or submitted, if it has not started; seconds since the epoch, by its driver's clock."""
    ended: float | None = None
    seconds: float = 0.0
    stages: int = 0
    stages_done: int = 0
    datasets: tuple[tuple[str, str, int], ...] = ()
    """(folder, name, rows)."""
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    tokens: int = 0
    dollars: float = 0.0
    submission: Mapping[str, str] = field(default_factory=dict)
    """From a service: run, attempt, user, service."""


def run_names(storage: Storage) -> list[str]:
    """Names under which something is recorded, by one listing. One of them may be only a request to stop."""
    return sorted(name for name, then in storage.entries("runs").items() if then is None)


def attempt(storage: Storage, run_id: str) -> Attempt:
    """Reads at most three files."""
    result = _read(storage, f"runs/{run_id}/result.json")
    if result is not None:
        error = str(result.get("error") or "")
        return Attempt(run_id, "open" if error.startswith(LOST) else ended_as(result), error)
    if storage.exists(f"runs/{run_id}/run.json"):
        return Attempt(run_id, "open")
    refused = _read(storage, f"runs/{run_id}/refused.json")
    return Attempt(run_id, "none") if refused is None else Attempt(run_id, "refused", str(refused["error"]))


def summary(storage: Storage, run_id: str) -> RunSummary:
    """Reads two files if the run has ended, otherwise its events too. Raises InputError if there is none."""
    record = _read(storage, f"runs/{run_id}/run.json")
    if record is None:
        return _not_begun(storage, run_id)
    result = f"runs/{run_id}/result.json"
    run = RunRecord(storage, record, _read(storage, result))
    state, ended = "running", None
    if run.result is None and _dead(storage, run):
        state, run.result = "killed", _read(storage, result)  # again: it may have ended meanwhile
    if run.result is not None:
        state, ended = ended_as(run.result), float(run.result["ended"])
    ledger, allocated, spent = run.ledger(), run.allocated(), run.spend().total
    bases = {name: str(output["base"]) for name, output in run.outputs.items()}
    made = {base: ledger[name] for name, base in bases.items() if base.startswith("datasets/")}
    return RunSummary(
        run_id,
        state,
        run.error,
        str(record["engine"]),
        float(record["started"]),
        ended,
        run.seconds,
        len(record["stages"]),
        len(bases),
        tuple((base, base.split("/")[1], _rows(entry)) for base, entry in made.items()),
        allocated.gpu_seconds / HOUR,
        allocated.cpu_seconds / HOUR,
        spent.tokens,
        spent.dollars or 0.0,
        dict(record.get("submission") or {}),
    )


def _rows(entry: Entry) -> int:
    """Rows of a dataset, with repeats."""
    return entry.after if entry.copies is None else entry.copies


def _not_begun(storage: Storage, run_id: str) -> RunSummary:
    submission = _read(storage, f"runs/{run_id}/submission.json")
    if submission is None:
        raise InputError(f"run {run_id!r}: not in {storage.url}")
    about, then = dict(submission.get("submission") or {}), float(submission["submitted"])
    refused = _read(storage, f"runs/{run_id}/refused.json")
    if refused is None:
        return RunSummary(run_id, "submitted", started=then, submission=about)
    ended = float(refused.get("time", then))
    return RunSummary(run_id, "refused", str(refused["error"]), started=then, ended=ended, submission=about)


def _dead(storage: Storage, run: RunRecord) -> bool:
    """From a single look, so that a list never waits for a heartbeat."""
    held = lease.read(storage, run.lease)
    if held is None:  # a driver takes its lease a moment after it has written its record
        young = 0 <= time.time() - float(run.record["started"]) < STARTING_SECONDS
        return not young or stop.kill_requested(storage, run.run_id) is not None
    return lease.is_dead(held)


def _read(storage: Storage, path: str) -> dict[str, Any] | None:
    try:
        return dict(storage.read_json(path))
    except FileNotFoundError:
        return None
