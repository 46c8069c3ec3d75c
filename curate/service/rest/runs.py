"""Runs: submit, list, watch, stop, kill, resume."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Body, Header, Path, Query, Request, Response

from curate.service.actions import runs
from curate.service.actions.run_logs import LOG_CURSOR
from curate.service.problems import InvalidProblem
from curate.service.rest.deps import CHECKS, SEEN, IfMatch, InWorkspace, Limit, Router, Served, Who, after, problems
from curate.service.rest.etags import tagged, version_of
from curate.service.rest.paging import form
from curate.service.rest.sse import STREAM, RunStream, wants_page
from curate.service.shapes.common import NAME, Page
from curate.service.shapes.runs import ChangedRun, Event, FunnelLine, LogLine, NewLimits, NewRun, RunLine, RunShape
from curate.service.states import State
from curate.service.watch import ids

router = Router(tags=["runs"])
RunId = Annotated[str, Path(pattern=NAME, description="Id of a run.")]
Lines = Annotated[int, Query(ge=1, le=5000)]
FOUND = problems(404, 409)
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "For `Accept: application/json`, a page of events; otherwise the stream, which ends with `end`.",
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/Page_Event_"}},
            STREAM: {"schema": {"type": "string"}},
        },
    }
}
REPEATED: dict[int | str, dict[str, Any]] = {
    200: {"model": RunShape, "description": "The same request was here before; the run as it is now."}
}
LastEventId = Annotated[str | None, Header(max_length=200, description="Continue a stream after this event.")]


@router.post("/runs", status_code=202, dependencies=CHECKS, responses=REPEATED)
def submit_run(service: Served, who: Who, request: Request, response: Response, order: NewRun) -> RunShape:
    """Into the queue. If the answer may be lost, choose an `id` and repeat the request."""
    if "idempotency-key" in request.headers:  # ignoring it would submit a repeated request twice
        raise InvalidProblem("Idempotency-Key: not supported; choose the run's `id` in the body instead")
    run, new = runs.submit(service, who, order)
    response.status_code = 202 if new else 200
    return run


@router.get("/runs")
def list_runs(
    service: Served,
    who: Who,
    workspace: Annotated[str | None, Query(pattern=NAME)] = None,
    state: State | None = None,
    user: Annotated[str | None, Query(max_length=64)] = None,
    query: Annotated[str | None, Query(max_length=200, description="Part of the id or the title.")] = None,
    cursor: Annotated[str | None, after(float, str, int)] = None,
    limit: Limit = 50,
) -> Page[RunLine]:
    """Newest first, of all workspaces that you may see."""
    return runs.runs(service, who, workspace=workspace, state=state, user=user, query=query, cursor=cursor, limit=limit)


@router.get("/runs/{run}", response_model=RunShape, responses={**FOUND, **SEEN})
def get_run(service: Served, who: Who, request: Request, run: RunId, workspace: InWorkspace = None) -> Response:
    """With the live status of its stages, a few seconds behind."""
    found = runs.run(service, who, run, workspace)
    return tagged(request, found, found.version)


@router.patch("/runs/{run}", response_model=RunShape, responses={**FOUND, **problems(403, 412)})
def change_run(
    service: Served,
    who: Who,
    request: Request,
    run: RunId,
    order: ChangedRun,
    workspace: InWorkspace = None,
    if_match: IfMatch = None,
) -> Response:
    """Change the priority of a queued run."""
    changed = runs.change(service, who, run, order, workspace, version_of(if_match))
    return tagged(request, changed, changed.version)


@router.post("/runs/{run}/stop", status_code=202)
def stop_run(service: Served, who: Who, run: RunId, workspace: InWorkspace = None) -> RunShape:
    """Request it to commit its finished work and end. After its drain time it is killed."""
    return runs.stop(service, who, run, workspace)


@router.post("/runs/{run}/kill", status_code=202)
def kill_run(service: Served, who: Who, run: RunId, workspace: InWorkspace = None) -> RunShape:
    """Request it to end at once. What was committed stays."""
    return runs.kill(service, who, run, workspace)


@router.post("/runs/{run}/resume", status_code=202, dependencies=CHECKS)
def resume_run(service: Served, who: Who, run: RunId, workspace: InWorkspace = None) -> RunShape:
    """Its next attempt, into the queue. Finished work is reused."""
    return runs.resume(service, who, run, workspace)


@router.post("/runs/{run}/limit")
def limit_run(
    service: Served, who: Who, run: RunId, order: Annotated[NewLimits, Body()], workspace: InWorkspace = None
) -> dict[str, Any]:
    """Change limits of a running run. The answer has all that were changed so far."""
    return runs.limit(service, who, run, order, workspace)


@router.get("/runs/{run}/funnel", responses=FOUND)
def get_funnel(service: Served, who: Who, run: RunId, workspace: InWorkspace = None) -> list[FunnelLine]:
    """Rows before, rejected by reason and after, of the stages that are done."""
    return runs.funnel(service, who, run, workspace)


@router.get("/runs/{run}/ledger", responses=FOUND)
def get_ledger(service: Served, who: Who, run: RunId, workspace: InWorkspace = None) -> dict[str, Any]:
    """The counts as the run has recorded them, by stage."""
    return runs.ledger(service, who, run, workspace)


@router.get("/runs/{run}/logs", responses=FOUND)
def get_logs(
    service: Served,
    who: Who,
    run: RunId,
    stage: Annotated[str | None, Query(max_length=200)] = None,
    level: Literal["debug", "info", "warning", "error", "critical"] = "info",
    attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    after: Annotated[
        str | None,
        Query(
            max_length=1000,
            pattern=f"^$|{form(*LOG_CURSOR)}",
            description="`next` of another page; empty for the beginning.",
        ),
    ] = None,
    limit: Lines = 500,
    workspace: InWorkspace = None,
) -> Page[LogLine]:
    """Oldest first; without `after`, the newest lines."""
    return runs.logs(
        service, who, run, stage=stage, level=level, attempt=attempt, after=after, limit=limit, workspace=workspace
    )


@router.get("/runs/{run}/events", response_model=Page[Event], responses={**FOUND, **STREAMED, **problems(429)})
def get_events(
    service: Served,
    who: Who,
    request: Request,
    run: RunId,
    after: Annotated[
        str | None, Query(pattern=f"^({ids.FORM})?$", description="Id of an event, or `next` of a page.")
    ] = None,
    limit: Lines = 500,
    workspace: InWorkspace = None,
    last_event_id: LastEventId = None,
) -> Any:
    """As server-sent events: `state` whenever the run's state changes, its events as they come (without a name), `gap`
    where some are left out, and `end`. With `Accept: application/json`, a page of events."""
    if wants_page(request.headers.get("accept", "")):
        return runs.events(service, who, run, after, limit, workspace)
    return RunStream(runs.streamed(service, who, run, workspace), last_event_id or after)
