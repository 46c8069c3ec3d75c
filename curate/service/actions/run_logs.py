"""What a run says: its events and its log, by pages and as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from pydantic import TypeAdapter
from sqlalchemy import select
from sqlalchemy.orm import Session

from curate.api import Run
from curate.service.actions.finding import FoundRun, found
from curate.service.actions.places import opened, reachable
from curate.service.auth.dependency import still
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import IndexedRun, Submission, WorkspaceRow
from curate.service.problems import InvalidProblem, NotFoundProblem
from curate.service.rest.paging import decode, encode
from curate.service.service import Service
from curate.service.shapes.common import Page
from curate.service.shapes.runs import Event, LogLine
from curate.service.states import State
from curate.service.watch import ids
from curate.service.watch.tail import Look, shaped

LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_CURSOR = (int, float, int, str)
"""Types of the key of a cursor in a log: the attempt, and the engine's cursor."""
LOG_FIELDS = ("time", "level", "stage", "worker", "node", "message", "traceback")
_EVENTS, _LINES = TypeAdapter(list[Event]), TypeAdapter(list[LogLine])
SETTLED_SECONDS = 10.0
"""After the end of a run, in which its last log lines appear."""

# --- events -----------------------------------------------------------------------------------------------------------


def events(
    service: Service, who: Principal, id: str, after: str | None = None, limit: int = 500, workspace: str | None = None
) -> Page[Event]:
    """Events after one, over all attempts; without one, those of the current attempt. `next` is where the following
    page begins, later too, while the run may have more."""
    with service.database.read() as session:
        one = found(session, who, id, workspace, Role.VIEWER)
    at = ids.parse(after) if after else ids.Place(one.attempt, 1, 0)
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
        at = ids.Place(at.attempt + 1, 1, 0)
    more = len(items) >= limit or not one.over
    return Page(items=items, next=at.id if more else None)


def _page(service: Service, one: FoundRun, at: ids.Place, limit: int) -> tuple[list[Event], ids.Place]:
    """Events of one attempt after a place, and where the next ones begin."""
    attempt = one.attempt_id if at.attempt == one.attempt else f"{one.id}-{at.attempt}"
    if attempt == one.attempt_id and not one.begun:
        return [], at
    with reachable(one.place):
        page = service.watch.page(one.place.url, attempt, at.within, limit, live=not one.over)
    places = [(ids.place(at.attempt, within), event) for within, event in page.events]
    return _EVENTS.validate_python([shaped(*one) for one in places]), ids.place(at.attempt, page.next)


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
        after = ids.parse(last_event_id)
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
    row = session.execute(
        select(*(getattr(Submission, name) for name in names)).where(Submission.id == id)
    ).one_or_none()
    if row is None:
        return None
    state = State(row.state)
    resubmitted = state is State.LOST and row.lost <= row.retries
    begun = state not in (State.QUEUED, State.SUBMITTING)
    over = state.ended and not resubmitted
    return Look(row.state, row.reason, row.attempt, f"{id}-{row.attempt}", over, row.alert, begun)


# --- logs -------------------------------------------------------------------------------------------------------------


def logs(
    service: Service,
    who: Principal,
    id: str,
    *,
    stage: str | None = None,
    level: str = "info",
    attempt: int | None = None,
    after: str | None = None,
    limit: int = 500,
    workspace: str | None = None,
) -> Page[LogLine]:
    """Lines from a level upwards, oldest first: after `next` of another page; from the beginning with ""; otherwise the
    newest ones. `attempt`: the current one unless given."""
    if level not in LEVELS:
        raise InvalidProblem(f"level: {level!r}; expected one of {', '.join(LEVELS)}")
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
