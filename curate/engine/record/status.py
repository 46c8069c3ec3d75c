"""Progress of a run, from its events: stages with rows, rates by lane and time left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from curate.core.ledger import Entry
from curate.engine.record import stop
from curate.engine.record.runs import RunRecord

DONE, REUSED, RUNNING, WAITING, UNFINISHED = "done", "reused", "running", "waiting", "unfinished"


@dataclass(frozen=True)
class LaneRate:
    """Progress of a stage in a lane; rates cover the last half minute."""

    lane: str
    rows: int
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    busy: float | None = None
    """Busy share of the lane's workers."""


@dataclass(frozen=True)
class StageStatus:
    stage: str
    op: str
    state: str
    """done, reused, running, waiting, or unfinished if the run ended before it."""
    rows: int = 0
    total: int | None = None
    left_seconds: float | None = None
    text: str = ""
    """For work not counted in rows: the share done and the current activity."""
    lanes: tuple[LaneRate, ...] = ()


@dataclass(frozen=True)
class Status:
    run_id: str
    state: str
    """starting, submitted, running, done, failed, stopped or killed."""
    seconds: float = 0.0
    error: str = ""
    stages: tuple[StageStatus, ...] = ()
    engine: str = ""
    stop: dict[str, Any] | None = None
    """The request to stop it, if any (see `record.stop.requested`)."""

    @property
    def ended(self) -> bool:
        return self.state not in ("starting", "submitted", "running")

    @property
    def done(self) -> int:
        """Number of stages that are done."""
        return sum(stage.state in (DONE, REUSED) for stage in self.stages)


def status_of(run: RunRecord, brief: bool = False) -> Status:
    """Status from a record. `brief`: the events of an ended run are not read; its unfinished stages look untouched."""
    state = run.state
    known = [] if state == "done" or (brief and run.result is not None) else run.events
    request = stop.requested(run.storage, run.run_id)
    return Status(run.run_id, state, run.seconds, run.error, _stages(run, state, known), run.record["engine"], request)


def _stages(run: RunRecord, state: str, known: list[dict[str, Any]]) -> tuple[StageStatus, ...]:
    outputs, reused, ledger = run.outputs, run.reused(), run.ledger()
    steps: dict[str, dict[str, Any]] = {}
    activity: dict[str, dict[str, Any]] = {}
    lanes: dict[str, dict[str, dict[str, Any]]] = {}
    for event in known:
        if event["event"] == "step":
            steps |= dict.fromkeys(event["stage"].split(" + "), event)
        elif event["event"] == "progress" and event.get("lane"):
            lanes.setdefault(event["stage"], {})[event["lane"]] = event
        elif event["event"] == "progress":
            activity[event["stage"]] = event
    built = {event["stage"] for event in known if event["event"] == "build"}
    found = []
    for name, op in run.ops().items():
        if name in outputs:
            entry = ledger.get(name, Entry())
            found.append(StageStatus(name, op, REUSED if reused.get(name) else DONE, entry.before, entry.before))
            continue
        begun = any(name in seen for seen in (built, steps, lanes, activity))
        begun_state = RUNNING if state == "running" else UNFINISHED
        rates = tuple(_rate(lane, event) for lane, event in sorted(lanes.get(name, {}).items()))
        found.append(
            _under_way(name, op, begun_state if begun else WAITING, steps.get(name), activity.get(name), rates)
        )
    return tuple(found)


def _under_way(
    name: str,
    op: str,
    state: str,
    step: dict[str, Any] | None,
    activity: dict[str, Any] | None,
    lanes: tuple[LaneRate, ...],
) -> StageStatus:
    step = step or {}
    total = step.get("total")
    rows = min(sum(lane.rows for lane in lanes), total or 0) or int(step.get("rows", 0))
    text = f"{activity['done']:.0%}, {activity['text']}" if activity else str(step.get("text", ""))
    left = None if step.get("ended") or state != RUNNING else step.get("left_seconds")
    if lanes and total and left is None and state == RUNNING:
        rate = sum(lane.rows_per_s for lane in lanes)
        left = (total - rows) / rate if rate > 0 and rows < total else None
    return StageStatus(name, op, state, rows, total, left, text, lanes)


def _rate(lane: str, event: dict[str, Any]) -> LaneRate:
    rates = float(event.get("rows_per_s", 0.0)), float(event.get("bytes_per_s", 0.0))
    return LaneRate(lane, int(event.get("rows", 0)), *rates, event.get("busy"))
