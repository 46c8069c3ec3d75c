"""Writing the next state of a run: the submission, its change, its row in the list, and the hooks that are due. All of
it is one transaction, which applies only to the version that was read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from curate.service.auth import audit
from curate.service.auth.roles import SERVICE
from curate.service.database.database import swapped
from curate.service.database.models import Change, IndexedRun, Submission
from curate.service.reconcile import hooks
from curate.service.reconcile.observe import Run
from curate.service.states import Action, Request, State, Step

if TYPE_CHECKING:
    from curate.service.service import Service


USED = ("gpu_hours", "dollars", "tokens")
SHOWN = ("state", "reason", "ended", "alert", "gpu_hours", "dollars")
"""Values that the list of runs has too."""


@dataclass(frozen=True)
class Totals:
    """What an attempt used and made."""

    gpu_hours: float = 0.0
    dollars: float = 0.0
    tokens: int = 0
    stages: int = 0
    stages_done: int = 0
    rows: int | None = None


def write(service: Service, run: Run, step: Step, totals: Totals | None = None) -> bool:
    """Whether it was written; False if the submission was changed meanwhile, or nothing is new."""
    row, now = run.row, service.clock()
    values = _values(row, step, now)
    if not values:
        return False
    with service.database.write() as session:
        used = _used(session, row, step, totals)
        values |= {name: getattr(row, name) + amount for name, amount in used.items()}
        if not swapped(session, row, **values):
            return False
        if "state" in values:
            attempt = values.get("attempt", row.attempt)
            session.add(
                Change(
                    submission_id=row.id, time=now, attempt=attempt, before=row.state, after=step.state.value,
                    reason=step.reason, **used,
                )
            )  # fmt: skip
            if step.state.ended and not resubmitted(row, step):
                hooks.due(session, service.settings, run, step)
        _update_index(session, run, step, values, totals)
    return True


def resubmitted(row: Submission, step: Step) -> bool:
    """Whether a run that is lost by this step has retries left, so that it has not come to its end."""
    return step.state is State.LOST and row.lost < row.retries


def request_stop(service: Service, run: Run, by: str, why: str) -> None:
    """As a user would."""
    row = run.row
    values = {"request": Request.STOP.value, "requested": service.clock(), "requested_by": by}
    with service.database.write() as session:
        if swapped(session, row, **values):
            audit.record(session, SERVICE, "run.stop", workspace=run.workspace_name, target=row.id, reason=why)


def set_alert(service: Service, run: Run, text: str) -> None:
    row = run.row
    with service.database.write() as session:
        if swapped(session, row, alert=text):
            this = (IndexedRun.workspace_id == row.workspace_id, IndexedRun.id == row.id)
            session.execute(update(IndexedRun).where(*this).values(alert=text))


def _used(session: Session, row: Submission, step: Step, totals: Totals | None) -> dict[str, Any]:
    """What a change adds to what the run has used. An attempt counts once, when it ends; a driver that turns out to be
    alive after it was lost has not ended."""
    lost = row.state == State.LOST.value
    if lost and step.state is State.RUNNING:
        totals = Totals()
    if totals is None:
        return {}
    made = (totals.gpu_hours, totals.dollars, totals.tokens)
    if lost:
        sums = (func.coalesce(func.sum(getattr(Change, name)), 0) for name in USED)
        this = (Change.submission_id == row.id, Change.attempt == row.attempt)
        before = session.execute(select(*sums).where(*this)).one()
        made = (made[0] - before[0], made[1] - before[1], made[2] - int(before[2]))
    return dict(zip(USED, made, strict=True))


def _values(row: Submission, step: Step, now: float) -> dict[str, Any]:
    before, values = State(row.state), dict[str, Any]()
    reason = step.reason or (row.reason if step.state is before and before.ended else "")
    if reason != row.reason:
        values["reason"] = reason
    if step.action is Action.NEXT_ATTEMPT:
        values |= {"attempt": row.attempt + 1, "request": "", "requested": None, "requested_by": ""}
        values |= {"seconds": row.seconds_until(now) or 0.0, "started": None}
    if step.state is before and "attempt" not in values:
        return values
    values |= {"state": step.state.value, "since": now, "reason": reason}
    values["ended"] = now if step.state.ended else None
    if step.state is State.RUNNING and row.started is None:
        values["started"] = now
    if step.state is State.LOST:
        values["lost"] = row.lost + 1
    if step.state is not State.RUNNING:
        values["alert"] = ""
    return values


def _update_index(session: Session, run: Run, step: Step, values: dict[str, Any], totals: Totals | None) -> None:
    shown: dict[str, Any] = {name: values[name] for name in SHOWN if name in values}
    if "attempt" in values:
        shown |= {"attempt_id": f"{run.row.id}-{values['attempt']}"}
    if values.get("ended") is not None:
        shown["seconds"] = run.row.seconds_until(values["ended"])
    if totals is not None:
        shown |= {"stages": totals.stages, "stages_done": totals.stages_done} if totals.stages else {}
        shown |= {"rows": totals.rows} if totals.rows is not None else {}
    if shown:
        this = (IndexedRun.workspace_id == run.row.workspace_id, IndexedRun.id == run.row.id)
        session.execute(update(IndexedRun).where(*this).values(**shown))
