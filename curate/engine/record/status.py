"""Progress of a run, from its events: stages with rows, rates by lane, time left, and what was fetched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from curate.core.fetches import FETCHED, Code, Fetches, codes_of
from curate.core.ledger import Entry
from curate.core.spend import Ceilings, RunSpend
from curate.engine.record import limits, stop
from curate.engine.record.runs import RunRecord
from curate.engine.workers.allocation import Allocated

DONE, REUSED, RUNNING, WAITING, UNFINISHED = "done", "reused", "running", "waiting", "unfinished"
PER_SECOND = ("fetched_per_s", "bytes_per_s")


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
class FetchStatus:
    """What a stage has fetched in this run, of unfinished shards too."""

    codes: Counter[Code]
    bytes: int
    seconds: float
    """Time since it began, or that it took."""
    finished: Fetches
    """Summary of the finished shards: tries and hosts."""
    rates: tuple[tuple[float, float, float], ...] = ()
    """(time, samples per second, bytes per second) at each measurement, over half a minute."""

    @property
    def samples_per_s(self) -> float:
        """Mean since it began."""
        return self.codes[FETCHED] / max(self.seconds, 0.001)

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / max(self.seconds, 0.001)


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
    fetches: FetchStatus | None = None
    seconds: float | None = None
    """That it took, if this run built its output."""


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
    spend: RunSpend = field(default_factory=RunSpend)
    """What it has spent at endpoints."""
    ceilings: Ceilings = field(default_factory=Ceilings)
    allocated: Allocated = field(default_factory=Allocated)
    """What its workers have occupied so far."""
    lost: int = 0
    """Rows lost to failures."""
    allowed: int | None = None
    """Rows that may be lost to failures; None before any was lost, and for an ended run."""

    @property
    def budget_used(self) -> float:
        """Share of the failure budget that is used, as far as it is known."""
        return self.lost / max(1, self.allowed) if self.allowed is not None else 0.0

    @property
    def ended(self) -> bool:
        return self.state not in ("starting", "submitted", "running")

    @property
    def done(self) -> int:
        """Number of stages that are done."""
        return sum(stage.state in (DONE, REUSED) for stage in self.stages)


def status_of(run: RunRecord, brief: bool = False) -> Status:
    """Status from a record. `brief`: the events of an ended run are not read; its unfinished stages look untouched, and
    what it fetched is missing."""
    state = run.state
    known = [] if brief and run.result is not None else run.events
    request = stop.requested(run.storage, run.run_id)
    stages = _stages(run, state, known)
    found = Status(run.run_id, state, run.seconds, run.error, stages, run.record["engine"], request)
    if brief:
        return found
    lost, allowed = run.lost()
    found = replace(found, spend=run.spend(), ceilings=_ceilings(run))
    return replace(found, allocated=run.allocated(), lost=lost, allowed=allowed)


def _ceilings(run: RunRecord) -> Ceilings:
    """The ceilings of a run, as `curate limit` may have changed them."""
    options, changed = run.record["options"], limits.requested(run.storage, run.run_id)
    given = (changed.get(name, options.get(name)) for name in limits.CEILINGS)
    return Ceilings(*given)


def _stages(run: RunRecord, state: str, known: list[dict[str, Any]]) -> tuple[StageStatus, ...]:
    outputs, reused, ledger, took = run.outputs, run.reused(), run.ledger(), run.took()
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
    fetches: dict[str, list[dict[str, Any]]] = {}
    for event in known:
        if event["event"] in ("build", "fetches") or event.get("codes"):
            fetches.setdefault(event["stage"], []).append(event)
    found = []
    for name, op in run.ops().items():
        if name in outputs:
            entry = ledger.get(name, Entry())
            ended = REUSED if reused.get(name) else DONE
            whole = _fetches(fetches.get(name, ()), over=True)
            rows, seconds = entry.before, took.get(name)
            found.append(StageStatus(name, op, ended, rows, rows, fetches=whole, seconds=seconds))
            continue
        begun = any(name in seen for seen in (built, steps, lanes, activity))
        begun_state = RUNNING if state == "running" else UNFINISHED
        rates = tuple(_rate(lane, event) for lane, event in sorted(lanes.get(name, {}).items()))
        state_now = begun_state if begun else WAITING
        stage = _under_way(name, op, state_now, steps.get(name), activity.get(name), rates)
        found.append(replace(stage, fetches=_fetches(fetches.get(name, ()), over=False)))
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
    total, live, over = step.get("total"), bool(step.get("live")), bool(step.get("ended"))
    if live and over:
        lanes = ()  # they work on what follows the step, such as the index of keys
    known, rows = int(step.get("rows", 0)), min(sum(lane.rows for lane in lanes), total or 0)
    rows = max(rows, known)  # lanes count this run's work, a step also finished units that it found
    text = f"{activity['done']:.0%}, {activity['text']}" if activity else str(step.get("text", ""))
    left = None if over or state != RUNNING or live else step.get("left_seconds")
    if lanes and total and not text and state == RUNNING:
        rate = sum(lane.rows_per_s for lane in lanes)
        left = (total - rows) / rate if rate > 0 and rows < total else None
    return StageStatus(name, op, state, rows, total, left, text, lanes)


def _rate(lane: str, event: dict[str, Any]) -> LaneRate:
    rates = float(event.get("rows_per_s", 0.0)), float(event.get("bytes_per_s", 0.0))
    return LaneRate(lane, int(event.get("rows", 0)) - int(event.get("lost", 0)), *rates, event.get("busy"))


def _fetches(events: Sequence[dict[str, Any]], over: bool) -> FetchStatus | None:
    """From the events of a stage: its builds, what its lanes measured, and summaries of finished shards. `over`: the
    stage is done, so that the last summary is complete."""
    summary, lanes = Fetches(), dict[str, dict[str, Any]]()
    rates: list[tuple[float, float, float]] = []
    began = now = 0.0
    for event in events:
        if event["event"] == "build":
            began = event["time"]
            continue
        if event["event"] == "fetches":
            summary, now = Fetches.from_json(event["summary"]), event["time"]
            continue
        lanes[event["lane"]] = event
        rates.append((event["time"], *(sum(float(lane[name]) for lane in lanes.values()) for name in PER_SECOND)))
    if not (summary or lanes):
        return None
    codes, size = summary.codes, summary.bytes
    live = sum((Counter(codes_of(lane["codes"])) for lane in lanes.values()), Counter[Code]())
    if live.total() > codes.total() and not over:
        codes, size, now = live, sum(lane["bytes"] for lane in lanes.values()), rates[-1][0]
    return FetchStatus(codes, size, max(0.0, now - began), summary, tuple(rates))
