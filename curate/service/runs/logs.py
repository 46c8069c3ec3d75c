"""What a run says: its events and its log, by pages and as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Header, Query, Request
from pydantic import TypeAdapter
from sqlalchemy.orm import Session, load_only
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from curate.api import Run
from curate.service.auth.dependency import still
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import IndexedRun, Submission, WorkspaceRow
from curate.service.places.workspaces import opened, reachable
from curate.service.problems import InvalidProblem, NotFoundProblem
from curate.service.rest.paging import decode, encode, form
from curate.service.rest.routing import InWorkspace, Router, Served, Who, problems
from curate.service.runs.finding import FoundRun, RunId, found
from curate.service.runs.shapes import Event, LogLine
from curate.service.service import Service
from curate.service.shapes import Page
from curate.service.states import State
from curate.service.watch.tail import FORM, Look, Position, parse, place, shaped

router = Router(tags=["runs"])
Level = Literal["debug", "info", "warning", "error", "critical"]
LOG_CURSOR = (int, float, int, str)
"""Types of the key of a cursor in a log: the attempt, and the engine's cursor."""
LOG_FIELDS = ("time", "level", "stage", "worker", "node", "message", "traceback")
_EVENTS, _LINES = TypeAdapter(list[Event]), TypeAdapter(list[LogLine])
SETTLED_SECONDS = 10.0
"""After the end of a run, in which its last log lines appear."""
PING_SECONDS = 15
SEND_SECONDS = 60.0
"""A client that takes no bytes for so long is dropped."""
JSON, STREAM = "application/json", "text/event-stream"
Lines = Annotated[int, Query(ge=1, le=5000)]
STREAMED: dict[int | str, dict[str, Any]] = {
    **problems(404, 409, 429),
    200: {
        "description": "For `Accept: application/json`, a page of events; otherwise the stream, which ends with `end`.",
        "content": {
            JSON: {"schema": {"$ref": "#/components/schemas/Page_Event_"}},
            STREAM: {"schema": {"type": "string"}},
        },
    },
}

# --- events -----------------------------------------------------------------------------------------------------------


@router.get("/runs/{run}/events", response_model=Page[Event], responses=STREAMED)
def get_events(
    service: Served,
    who: Who,
    request: Request,
    id: RunId,
    after: Annotated[
        str | None, Query(pattern=f"^({FORM})?$", description="Id of an event, or `next` of a page.")
    ] = None,
    limit: Lines = 500,
    workspace: InWorkspace = None,
    last_event_id: Annotated[
        str | None, Header(max_length=200, description="Continue a stream after this event.")
    ] = None,
) -> Any:
    """As server-sent events: `state` whenever the run's state changes, its events as they come (without a name), `gap`
    where some are left out, and `end`. With `Accept: application/json`, a page of events."""
    accept = request.headers.get("accept", "")
    if JSON in accept and STREAM not in accept:
        return events(service, who, id, after, limit, workspace)
    return RunStream(streamed(service, who, id, workspace), last_event_id or after)


def events(
    service: Service, who: Principal, id: str, after: str | None = None, limit: int = 500, workspace: str | None = None
) -> Page[Event]:
    """Events after one, over all attempts; without one, those of the current attempt. `next` is where the following
    page begins, later too, while the run may have more."""
    with service.database.read() as session:
        one = found(session, who, id, workspace, Role.VIEWER)
    at = parse(after) if after else Position(one.attempt, 1, 0)
    if at is None:
        raise InvalidProblem(f"after: {(after or '')[:50]!r} is not the id of an event; use `next`, or leave it out")
    if at.attempt > one.attempt:
        return Page(items=[])
    items: list[Event] = []
    while True:
        page, at = _page(service, one, at, limit - len(items))
        items += page
        if len(items) >= limit or at.attempt >= one.attempt:
            break
        at = Position(at.attempt + 1, 1, 0)
    more = len(items) >= limit or not one.over
    return Page(items=items, next=at.id if more else None)


def _page(service: Service, one: FoundRun, at: Position, limit: int) -> tuple[list[Event], Position]:
    """Events of one attempt after a place, and where the next ones begin."""
    attempt = one.attempt_id if at.attempt == one.attempt else f"{one.id}-{at.attempt}"
    if attempt == one.attempt_id and not one.begun:
        return [], at
    with reachable(one.place):
        page = service.watch.page(one.place.url, attempt, at.within, limit, live=not one.over)
    places = [(place(at.attempt, within), event) for within, event in page.events]
    return _EVENTS.validate_python([shaped(*one) for one in places]), place(at.attempt, page.next)


# --- streams ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Streamed:
    """A run that the user may watch."""

    service: Service
    who: Principal
    place: WorkspaceRow
    id: str
    submitted: bool
    over: bool

    def stream(self, last_event_id: str | None) -> AsyncIterator[bytes]:
        """Server-sent events, encoded; see `watch`."""
        key = (self.place.id, self.id)
        after = parse(last_event_id)
        return self.service.watch.stream(key, self.place.url, self.look, after, self.over, self.who.login, self.allowed)

    def look(self) -> Look:
        """The run now, as every viewer sees it. Raises NotFoundProblem once it is gone."""
        with self.service.database.read() as session:
            found = _look(session, self.place.id, self.id, self.submitted)
        if found is None:
            raise NotFoundProblem(f"run {self.id}: removed")
        if self.submitted or found.ended:
            return found
        status = self.service.watch.status(self.place.url, found.attempt_id)  # the index is behind by a minute
        if status is None or not status.ended:
            return found
        return Look(status.state, status.error, 1, found.attempt_id, ended=True)

    def allowed(self) -> None:
        """Raises a Problem if they may not watch it any more."""
        still(self.service, self.who).check(Role.VIEWER, self.place.id, self.place.name)


def streamed(service: Service, who: Principal, id: str, workspace: str | None = None) -> Streamed:
    with service.database.read() as session:
        one = found(session, who, id, workspace, Role.VIEWER)
    return Streamed(service, who, one.place, one.id, one.row is not None, one.over)


def _look(session: Session, place: int, id: str, submitted: bool) -> Look | None:
    """Without the texts of the submission."""
    if not submitted:
        line = session.get(IndexedRun, (place, id))
        if line is None:
            return None
        return Look(line.state, line.reason, 1, line.attempt_id, State(line.state).ended, line.alert)
    names = ("state", "reason", "attempt", "alert", "lost", "retries")
    row = session.get(Submission, id, options=[load_only(*(getattr(Submission, name) for name in names))])
    if row is None:
        return None
    begun = row.state not in (State.QUEUED, State.SUBMITTING)
    return Look(row.state, row.reason, row.attempt, row.attempt_id, row.over, row.alert, begun)


class RunStream(EventSourceResponse):
    """By sse-starlette: FastAPI's own response logs an exception for each client that goes away. It counts against
    the streams of its user from here on. Raises TooManyProblem."""

    def __init__(self, run: Streamed, last_event_id: str | None) -> None:
        with ExitStack() as counted:
            counted.enter_context(run.service.watch.counted(run.who.user_id))
            chunks = run.stream(last_event_id)
            super().__init__(chunks, ping=PING_SECONDS, sep="\n", send_timeout=SEND_SECONDS, ping_message_factory=_ping)
            self._counted = counted.pop_all()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await super().__call__(scope, receive, send)


def _ping() -> ServerSentEvent:
    return ServerSentEvent(comment="ping", sep="\n")


# --- logs -------------------------------------------------------------------------------------------------------------


@router.get("/runs/{run}/logs", responses=problems(404, 409))
def get_logs(
    service: Served,
    who: Who,
    id: RunId,
    stage: Annotated[str | None, Query(max_length=200)] = None,
    level: Level = "info",
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
    with service.database.read() as session:
        one = found(session, who, id, workspace, Role.VIEWER)
    return log_of(service, one, stage=stage, level=level, attempt=attempt, after=after, limit=limit)


def log_of(
    service: Service,
    one: FoundRun,
    *,
    stage: str | None = None,
    level: str = "info",
    attempt: int | None = None,
    after: str | None = None,
    limit: int = 500,
) -> Page[LogLine]:
    number = attempt or one.attempt
    if not 1 <= number <= one.attempt:
        raise NotFoundProblem(f"run {one.id}: has no attempt {number}; it has {one.attempt}")
    name = one.attempt_id if number == one.attempt else f"{one.id}-{number}"
    if name == one.attempt_id and not one.begun:
        return Page(items=[], next=_next(number, "") if not one.over else None)
    run = Run(opened(one.place), name)
    with reachable(one.place):
        if after is None:
            page = run.log_tail(limit, stage, level)
        else:
            page = run.log_page(_cursor(after, number), limit, stage, level)
    ended = one.row.ended if one.row else one.line.ended if one.line else None
    quiet = one.over and service.clock() - (ended or 0.0) > SETTLED_SECONDS
    lines = _LINES.validate_python([{name: record.get(name) or "" for name in LOG_FIELDS} for record in page.records])
    return Page(items=lines, next=_next(number, page.next) if page.more or not quiet else None)


def _next(attempt: int, text: str) -> str:
    """A cursor, from the engine's."""
    then, line, name = text.split("/", 2) if text else ("0.0", "-1", "")
    return encode(attempt, float(then), int(line), name)


def _cursor(after: str, attempt: int) -> str:
    """Where the log of the attempt continues. Raises InvalidProblem."""
    if not after:
        return ""
    number, then, line, name = decode(after, *LOG_CURSOR)
    return f"{then!r}/{line}/{name}" if number == attempt else ""
