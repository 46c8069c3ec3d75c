"""Runs by their id, as a user may see them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Path
from sqlalchemy import BindParameter, bindparam, func, select
from sqlalchemy.orm import Session

from curate.api import Workspace
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import IndexedRun, Submission, TargetRow, User, WorkspaceRow
from curate.service.places.workspaces import opened, workspace_row
from curate.service.problems import ConflictProblem, NotFoundProblem
from curate.service.shapes import NAME
from curate.service.states import RESUMABLE, State

RunId = Annotated[str, Path(alias="run", pattern=NAME, description="Id of a run.")]


@dataclass(frozen=True)
class FoundRun:
    """A run with its surroundings. `row`: None for one that was started in the workspace without the service; then
    `line` is there."""

    who: Principal
    """The user that looks at it."""
    place: WorkspaceRow
    row: Submission | None
    line: IndexedRun | None
    user: str
    target: str

    @property
    def id(self) -> str:
        return self._any.id

    @property
    def attempt_id(self) -> str:
        return self._any.attempt_id

    @property
    def attempt(self) -> int:
        return self.row.attempt if self.row else 1

    @property
    def state(self) -> State:
        return State(self._any.state)

    @property
    def reason(self) -> str:
        return self._any.reason

    @property
    def alert(self) -> str:
        return self._any.alert

    @property
    def _any(self) -> Submission | IndexedRun:
        found = self.row or self.line
        assert found is not None
        return found

    @property
    def workspace(self) -> Workspace:
        return opened(self.place)

    @property
    def over(self) -> bool:
        """Whether it has ended, and stays so unless it is resumed."""
        return self.row.over if self.row else self.state.ended

    @property
    def settled(self) -> float:
        """Seconds for which results about it are kept; stages that are not done yet may change them."""
        return 600.0 if self.over else 15.0

    @property
    def resumable(self) -> bool:
        return self.row is not None and self.row.over and self.state in RESUMABLE

    @property
    def begun(self) -> bool:
        """Whether its attempt may have a record in the workspace."""
        return self.state not in (State.QUEUED, State.SUBMITTING)

    @property
    def alive(self) -> bool | None:
        """Whether its driver is; None if only the workspace can tell."""
        if self.row is None:
            return None
        return self.state in (State.STARTING, State.RUNNING, State.STOPPING)


def found(session: Session, who: Principal, run: str, workspace: str | None, needed: Role) -> FoundRun:
    """Raises NotFoundProblem, ForbiddenProblem, and ConflictProblem if several workspaces have a run with this id."""
    if workspace is not None:
        places = {row.id: row for row in [workspace_row(session, who, workspace, Role.VIEWER)]}
    else:
        places = visible(session, who)
    given = {"run": run, "places": list(places)}
    submitted = session.execute(_SUBMITTED, given).one_or_none()
    row = submitted[0] if submitted is not None else None
    lines = {line.workspace_id: line for line in session.scalars(_LINES, given)}
    having = lines.keys() | ({row.workspace_id} if row else set())
    if not having:
        raise NotFoundProblem(f"run {run}: not found; the list of runs has those that you can see")
    if len(having) > 1:
        names = ", ".join(sorted(places[one].name for one in having))
        raise ConflictProblem(f"run {run}: in several workspaces ({names}); name one with ?workspace=")
    place = places[having.pop()]
    who.check(needed, place.id, place.name)
    line = lines.get(place.id)
    if submitted is None:
        assert line is not None
        return FoundRun(who, place, None, line, line.user, line.target)
    return FoundRun(who, place, row, line, submitted[1], submitted[2])


_RUN: BindParameter[str] = bindparam("run")
_PLACES: BindParameter[list[int]] = bindparam("places", expanding=True)
# made once: to make a statement costs more than to execute it
_SUBMITTED = (
    select(Submission, User.name, TargetRow.name)
    .join(User, Submission.user_id == User.id)
    .join(TargetRow, Submission.target_id == TargetRow.id)
    .where(Submission.id == _RUN, Submission.workspace_id.in_(_PLACES))
)
_LINES = select(IndexedRun).where(IndexedRun.workspace_id.in_(_PLACES), IndexedRun.id == _RUN)
_WORKSPACES = select(WorkspaceRow)


def visible(session: Session, who: Principal) -> dict[int, WorkspaceRow]:
    """The workspaces that they may see, by id."""
    return {row.id: row for row in session.scalars(_WORKSPACES) if who.role(row.id) is not None}


def queue_positions(session: Session, runs: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Run -> its position, for those of (run, state) that are queued."""
    queued = [run for run, state in runs if state == State.QUEUED.value]
    if not queued:
        return {}
    found = session.execute(_POSITIONS, {"runs": queued})
    return {run: position for run, position in found}  # noqa: C416 - mypy: a Row is not a pair


_NUMBERED = (
    select(
        Submission.id,
        func.row_number()
        .over(
            partition_by=Submission.target_id,
            order_by=(Submission.priority.desc(), Submission.queued, Submission.id),  # as `queue.Waiting.order`
        )
        .label("position"),
    )
    .where(Submission.state == State.QUEUED.value)
    .subquery()
)
_POSITIONS = select(_NUMBERED).where(_NUMBERED.c.id.in_(bindparam("runs", expanding=True)))
