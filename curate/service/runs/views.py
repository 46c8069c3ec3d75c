"""Runs as they are shown: lists from the index, one run with its live status, its funnel, its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query
from sqlalchemy import ColumnElement, Row, Select, and_, bindparam, or_, select

from curate.api import Entry, StageStatus
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import Change, IndexedRun, Submission
from curate.service.places.workspaces import workspace_row
from curate.service.problems import ConflictProblem, UnavailableProblem
from curate.service.rest.paging import decode, encode
from curate.service.rest.routing import (
    SEEN,
    InWorkspace,
    Limit,
    Router,
    Served,
    Who,
    Workspace,
    after,
    etagged,
    problems,
)
from curate.service.runs.finding import FoundRun, RunId, found, queue_positions, visible
from curate.service.runs.logs import log_of
from curate.service.runs.remedies import failed_stage, remedy
from curate.service.runs.shapes import FunnelLine, LogLine, RunLine, RunShape, StageShape
from curate.service.service import Service
from curate.service.shapes import Page
from curate.service.states import State
from curate.service.watch.reader import Known

router = Router(tags=["runs"])
FOUND = problems(404, 409)

LINE = (
    "id", "title", "user", "target", "submitted", "state", "reason", "started", "ended", "seconds", "stages",
    "stages_done", "rows", "gpu_hours", "dollars", "alert",
)  # fmt: skip
# made once: to make a statement costs more than to execute it
_LINES = (
    select(*(getattr(IndexedRun, field) for field in LINE), IndexedRun.workspace_id, Submission.started.label("begun"))
    .outerjoin(Submission, Submission.id == IndexedRun.id)
    .order_by(IndexedRun.started.desc(), IndexedRun.id.desc(), IndexedRun.workspace_id.desc())
)
CHANGE = ("time", "attempt", "before", "after", "reason")
_CHANGES = (
    select(*(getattr(Change, field) for field in CHANGE))
    .where(Change.submission_id == bindparam("run"))
    .order_by(Change.id)
)
MOST_QUERY = 200

# --- lists ------------------------------------------------------------------------------------------------------------


@router.get("/runs")
def list_runs(
    service: Served,
    who: Who,
    workspace: Workspace = None,
    state: State | None = None,
    user: Annotated[str | None, Query(max_length=64)] = None,
    query: Annotated[str | None, Query(max_length=200, description="Part of the id or the title.")] = None,
    cursor: Annotated[str | None, after(float, str, int)] = None,
    limit: Limit = 50,
) -> Page[RunLine]:
    """Newest first, of all workspaces that you may see."""
    with service.database.read() as session:
        if workspace is not None:
            place = workspace_row(session, who, workspace, Role.VIEWER)
            names = {place.id: place.name}
        else:
            names = {row.id: row.name for row in visible(session, who).values()}
        chosen = _chosen(names, state, user, query, cursor)
        rows = session.execute(chosen.limit(limit + 1)).all()
        shown = rows[:limit]
        waiting = queue_positions(session, [(row.id, row.state) for row in shown])
    last = shown[-1] if len(rows) > limit else None
    return Page(
        items=[_line(row, names[row.workspace_id], waiting.get(row.id)) for row in shown],
        next=encode(float(last.started), last.id, last.workspace_id) if last else None,
    )


def _chosen(
    names: Mapping[int, str], state: str | None, user: str | None, query: str | None, cursor: str | None
) -> Select[*tuple[Any, ...]]:
    place, begun, run = IndexedRun.workspace_id, IndexedRun.started, IndexedRun.id
    wanted: list[ColumnElement[bool]] = [place.in_(names)]
    if state:
        wanted.append(IndexedRun.state == state)
    if user:
        wanted.append(IndexedRun.user == user)
    if query:
        text = query[:MOST_QUERY]
        wanted.append(or_(run.icontains(text, autoescape=True), IndexedRun.title.icontains(text, autoescape=True)))
    if cursor:
        started, last, where = decode(cursor, float, str, int)
        same = and_(begun == started, or_(run < last, and_(run == last, place < where)))
        wanted += [begun <= started, or_(begun < started, same)]
    return _LINES.where(*wanted)


def _line(row: Row[Any], workspace: str, position: int | None) -> RunLine:
    values = dict(zip(LINE, row, strict=False))  # further columns are the workspace's id and `begun`
    times = {"created": row.started, "started": row.begun if row.submitted else row.started}
    return RunLine.model_validate({**values, **times, "workspace": workspace, "position": position})


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """One look at a run, for everything that is shown of it at once."""

    one: FoundRun
    changes: Sequence[Row[Any]]
    """With the columns `CHANGE`; none if the service has not submitted it."""
    position: int | None
    """In the queue."""
    known: Known | None
    """What its attempt's record and events tell, at most some seconds old; None if they do not, or not now."""
    final: bool
    """Whether it has ended, and what is known tells its end: nothing changes any more unless it is resumed."""


def look(service: Service, who: Principal, id: str, workspace: str | None = None) -> Look:
    with service.database.read() as session:
        one = found(session, who, id, workspace, Role.VIEWER)
        changes = session.execute(_CHANGES, {"run": id}).all() if one.row else []
        position = queue_positions(session, [(one.id, one.state.value)]).get(one.id)
    try:
        known = _known(service, one)
    except UnavailableProblem:
        return Look(one, changes, position, None, final=False)
    return Look(one, changes, position, known, final=one.over and (known is None or known.status.ended))


@router.get("/runs/{run}", responses={**FOUND, **SEEN})
@etagged
def get_run(service: Served, who: Who, id: RunId, workspace: InWorkspace = None) -> RunShape:
    """With the live status of its stages, a few seconds behind."""
    return _shape(service, look(service, who, id, workspace))


def _shape(service: Service, seen: Look) -> RunShape:
    one, known = seen.one, seen.known
    stages = _stages(one, known)
    made = [base for base in known.outputs.values() if base.startswith("datasets/")] if known else []
    replaced = one.workspace.replaced_datasets() if made and known and known.settled else {}
    about = _about(service, one) | {
        "position": seen.position,
        "changes": [change._mapping for change in seen.changes],
        "stage_list": stages,
        "stages": len(stages),
        "stages_done": sum(stage.state in ("done", "reused") for stage in stages),
        "datasets": [replaced.get(base, base) for base in made],
        "reports": [base for stage, base in known.outputs.items() if stage in known.reports] if known else [],
    }
    return RunShape.model_validate(about)


def _known(service: Service, one: FoundRun) -> Known | None:
    return service.watch.known(one.place.url, one.attempt_id, one.alive) if one.begun else None


def _about(service: Service, one: FoundRun) -> dict[str, Any]:
    """What the database has."""
    line, row = one.line, one.row
    shown = _fields(line, LINE) if line is not None else {"stages": 0, "stages_done": 0, "rows": None}
    shown |= {"id": one.id, "workspace": one.place.name, "attempt": one.attempt, "attempt_id": one.attempt_id}
    shown |= {"user": one.user, "target": one.target, "state": one.state, "reason": one.reason, "alert": one.alert}
    shown |= {"resumable": one.resumable, "stoppable": not one.over}
    if row is None:
        return shown | {
            "created": shown["started"], "request": "", "requested_by": "", "priority": 0, "retries": 0,
            "drain_seconds": 0.0, "recipe": "", "set": [], "options": {}, "tokens": 0, "version": 1,
        }  # fmt: skip
    copied = ("request", "requested_by", "priority", "retries", "drain_seconds", "recipe", "options", "tokens")
    return shown | _fields(row, (*copied, "title", "gpu_hours", "dollars", "version", "ended")) | {
        "set": row.sets, "submitted": True, "created": row.created, "started": row.started,
        "seconds": row.seconds_until(service.clock()),
    }  # fmt: skip


def _fields(row: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _stages(one: FoundRun, known: Known | None) -> list[StageShape]:
    """From the attempt's status; before it begins, from the recipe as it was submitted."""
    planned = {stage["stage"]: stage for stage in one.row.stages} if one.row else {}
    if known is None or not known.status.stages:
        return [
            StageShape(
                stage=name, op=stage["op"], contract=stage["contract"], inputs=stage["inputs"], ports=stage["ports"],
                state="waiting", rows=0, total=None, left_seconds=None, text="", lanes=[],
            )
            for name, stage in planned.items()
        ]  # fmt: skip
    error = one.reason or known.status.error if one.state in (State.FAILED, State.LOST) else ""
    begun = [stage.stage for stage in known.status.stages if stage.state in ("unfinished", "running")]
    failed = failed_stage(error, begun) if error else None
    return [
        _stage(stage, known, str(planned.get(stage.stage, {}).get("contract", "")), error, stage.stage == failed)
        for stage in known.status.stages
    ]


def _stage(stage: StageStatus, known: Known, contract: str, error: str, failed: bool) -> StageShape:
    inputs, ports = known.graph.get(stage.stage, ([], {}))
    return StageShape.model_validate(
        {
            **_fields(stage, ("stage", "op", "state", "rows", "total", "left_seconds", "text")),
            "contract": contract, "inputs": inputs, "ports": ports,
            "lanes": [vars(lane) for lane in stage.lanes], "remedy": remedy(error) if failed else "",
        }
    )  # fmt: skip


# --- its counts -------------------------------------------------------------------------------------------------------


@router.get("/runs/{run}/ledger", responses=FOUND)
def get_ledger(service: Served, who: Who, id: RunId, workspace: InWorkspace = None) -> dict[str, Any]:
    """The counts as the run has recorded them, by stage."""
    known = _recorded(service, who, id, workspace)
    return {stage: entry.to_json() for stage, entry in known.ledger.items()}


@router.get("/runs/{run}/funnel", responses=FOUND)
def get_funnel(service: Served, who: Who, id: RunId, workspace: InWorkspace = None) -> list[FunnelLine]:
    """Rows before, rejected by reason and after, of the stages that are done."""
    return _funnel(_recorded(service, who, id, workspace))


def _funnel(known: Known) -> list[FunnelLine]:
    stages = {stage.stage: stage for stage in known.status.stages}
    return [_funnel_line(stage, known.ledger[name]) for name, stage in stages.items() if name in known.ledger]


def _funnel_line(stage: StageStatus, entry: Entry) -> FunnelLine:
    return FunnelLine(
        stage=stage.stage, op=stage.op, seconds=stage.seconds,
        before=entry.before, rejected=dict(entry.rejected), unusable=dict(entry.unusable),
        error=dict(entry.error), kept=entry.kept, after=entry.after, children=entry.children,
        items={family: items.to_json() for family, items in entry.of_items.items()},
        found=None if entry.skipped is None else entry.found,
        skipped={kind: one.count for kind, one in (entry.skipped or {}).items()},
    )  # fmt: skip


def _recorded(service: Service, who: Principal, id: str, workspace: str | None) -> Known:
    """What is known of a run whose attempt has started. Raises ConflictProblem for another."""
    with service.database.read() as session:
        one = found(session, who, id, workspace, Role.VIEWER)
    known = _known(service, one)
    if known is None:
        raise ConflictProblem(f"run {id}: is {one.state} and has not started; its counts come with its first stage")
    return known


# --- its page ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunPage:
    run: RunShape
    funnel: list[FunnelLine]
    log: Page[LogLine]
    role: Role | None
    """The reader's, in its workspace."""
    final: bool
    """Whether nothing of it changes any more unless the run is resumed."""


def run_page(
    service: Service, who: Principal, id: str, workspace: str | None, *, stage: str | None, level: str, log_lines: int
) -> RunPage:
    """With the newest lines of its log."""
    seen = look(service, who, id, workspace)
    return RunPage(
        _shape(service, seen),
        _funnel(seen.known) if seen.known is not None else [],
        log_of(service, seen.one, stage=stage, level=level, limit=log_lines)
        if log_lines
        else Page(items=[], next=None),
        who.role(seen.one.place.id),
        seen.final,
    )
