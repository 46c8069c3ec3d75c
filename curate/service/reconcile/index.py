"""The lists of runs and datasets: rows that can be rebuilt from the workspaces.

A submitted run is one row with the state of the submission, regardless of its number of attempts. A run that was
started in the workspace without the service is found by listing names, about every minute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session, defer

from curate.api import RunSummary, Workspace
from curate.core.errors import CurateError, InputError, StorageError
from curate.service.database.models import (
    ID,
    IndexedDataset,
    IndexedRun,
    Submission,
    TargetRow,
    User,
    WorkspaceRow,
)
from curate.service.reconcile.transitions import Totals
from curate.service.states import State

if TYPE_CHECKING:
    from curate.service.service import Service

READERS = 16
CHECKED = 20
"""Datasets of a workspace whose existence one discovery checks."""
BASE_CHARACTERS = 300
STATES = {state.value: state for state in State} | {"submitted": State.STARTING, "refused": State.FAILED}

log = logging.getLogger(__name__)
Values = dict[str, Any]


@dataclass(frozen=True)
class Counts:
    runs: int = 0
    datasets: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.runs + other.runs, self.datasets + other.datasets)


def attempt_of(name: str) -> tuple[str, int] | None:
    """(run, number) if a name may be that of an attempt."""
    run, _, number = name.rpartition("-")
    return (run, int(number)) if run and number.isdecimal() and number.isascii() and number[0] != "0" else None


# --- what a run has made ----------------------------------------------------------------------------------------------


def totals(found: RunSummary) -> Totals:
    return Totals(found.gpu_hours, found.dollars, found.tokens, found.stages, found.stages_done, _rows(found))


def _rows(summary: RunSummary) -> int | None:
    """Rows of its largest dataset."""
    return max((rows for *_, rows in summary.datasets), default=None)


def add_datasets(
    service: Service, workspace_id: int, workspace: Workspace, made: Iterable[tuple[str, RunSummary]],
    pinned: Mapping[str, str] = MappingProxyType({}),
) -> int:  # fmt: skip
    """Index the datasets of (run, summary), those of `pinned` (see `_pinned`), and the versions by takedowns of
    these and of indexed ones, if they are not indexed yet."""
    with service.database.read() as session:
        chosen = select(IndexedDataset.base, IndexedDataset.run_id).where(IndexedDataset.workspace_id == workspace_id)
        known = dict(iter(session.execute(chosen)))
    users = _with_versions(workspace, {**known, **pinned, **_builders(made)})
    new = list(_datasets(workspace_id, workspace, {base: run for base, run in users.items() if base not in known}))
    if new:
        with service.database.write() as session:
            for one in new:
                session.merge(IndexedDataset(**one))
    return len(new)


def _builders(made: Iterable[tuple[str, RunSummary]]) -> dict[str, str]:
    """Dataset -> the first run that has it, of runs from oldest to newest."""
    users: dict[str, str] = {}
    for run, summary in made:
        for base, *_ in summary.datasets:
            users.setdefault(base, run)
    return users


def _with_versions(workspace: Workspace, users: Mapping[str, str]) -> dict[str, str]:
    """Dataset -> run, with the versions that takedowns have made."""
    made = {
        new: next((users[old] for old in before if old in users), "")
        for new, before in workspace.dataset_origins().items()
    }
    return {**made, **users}


def _pinned(workspace: Workspace, submitted: Container[str]) -> dict[str, str]:
    """Pinned dataset -> its run, which gc may have removed since."""
    pins = [pin for pin in workspace.pins.values() if pin.base.startswith("datasets/")]
    return {pin.base: _attempted(pin.run, submitted) or pin.run for pin in pins}


def _datasets(workspace_id: int, workspace: Workspace, users: Mapping[str, str]) -> Iterator[Values]:
    for base, run in users.items():
        found = workspace.dataset(base) if len(base) <= BASE_CHARACTERS else None
        if found is not None:
            yield {
                "workspace_id": workspace_id, "base": base, "name": found.name, "fingerprint": found.fingerprint,
                "rows": found.rows, "tars": found.tars, "bytes": found.bytes, "committed": found.committed,
                "run_id": run,
            }  # fmt: skip


# --- runs without a submission ----------------------------------------------------------------------------------------


def discover(service: Service, row: WorkspaceRow, workspace: Workspace) -> Counts:
    """Index what is new in a workspace, read again what was under way, and drop what is gone. Without news: two
    listings."""
    names = set(workspace.run_names())  # first: a submission is in the database before its attempt is in the workspace
    with service.database.read() as session:
        submitted = set(session.scalars(select(Submission.id).where(Submission.workspace_id == row.id)))
        chosen = (IndexedRun.workspace_id == row.id, IndexedRun.submitted.is_(False))
        known = {run: (attempt, State(state).ended) for run, attempt, state in session.execute(_FOREIGN.where(*chosen))}
    wanted = [name for name in names if _wanted(name, submitted, known)]
    summaries = _summaries(workspace, wanted)
    rows = _foreign(row.id, summaries)
    gone = [run for run, (attempt, _) in known.items() if attempt not in names]
    if gone:
        workspace.check()  # else they only seem to be gone
    if rows or gone:
        with service.database.write() as session:
            for one in rows:
                session.merge(IndexedRun(**one))
            for run in gone:
                session.execute(delete(IndexedRun).where(*chosen, IndexedRun.id == run))
    pinned = _pinned(workspace, submitted) if rows and not known else {}  # once, for a workspace that was just added
    added = add_datasets(service, row.id, workspace, _in_order(summaries), pinned)
    _drop_datasets(service, row.id, workspace)
    return Counts(len(rows), added)


_FOREIGN = select(IndexedRun.id, IndexedRun.attempt_id, IndexedRun.state)


def _wanted(name: str, submitted: set[str], known: Mapping[str, tuple[str, bool]]) -> bool:
    """Whether a run has to be read: it is not an attempt of a submission, and not known to have ended."""
    if _attempted(name, submitted) is not None:
        return False
    attempt = attempt_of(name)
    if attempt is not None and attempt[0] in known and known[attempt[0]][0] != attempt[0]:  # a row of all attempts
        newest = attempt_of(known[attempt[0]][0])
        if newest is not None and newest[1] > attempt[1]:
            return False
        return not (newest == attempt and known[attempt[0]][1])
    return len(name) <= ID and not (name in known and known[name][1])


def _summaries(workspace: Workspace, names: Iterable[str], whole: bool = False) -> list[RunSummary]:
    """Summaries of readable runs: a corrupt record hides no other run. `whole`: raises StorageError if the workspace
    does not answer."""

    def read(name: str) -> RunSummary | None:
        try:
            return workspace.summary(name)
        except InputError:  # only a request to stop it was recorded
            return None
        except (CurateError, ValueError, KeyError, TypeError) as error:
            if whole and isinstance(error, StorageError):
                raise
            log.warning("run %s is not indexed: %s", name, error)
            return None

    with ThreadPoolExecutor(READERS, thread_name_prefix="curate-index") as pool:
        return [one for one in pool.map(read, names) if one is not None]


def _in_order(summaries: Iterable[RunSummary]) -> list[tuple[str, RunSummary]]:
    """(run, summary), oldest first."""
    ordered = sorted(summaries, key=lambda one: (one.started or 0.0, one.id))
    return [(_run_of(one), one) for one in ordered]


def _run_of(summary: RunSummary) -> str:
    """The run that a summary belongs to: for an attempt of a service, its run."""
    attempt, about = attempt_of(summary.id), summary.submission
    return attempt[0] if attempt is not None and about.get("run") == attempt[0] else summary.id


def _foreign(workspace_id: int, summaries: Iterable[RunSummary]) -> list[Values]:
    """Rows of runs without a submission here. Attempts of another service, or of a lost database, are one row."""
    groups: dict[str, list[RunSummary]] = {}
    for run, summary in _in_order(summaries):
        groups.setdefault(run, []).append(summary)
    rows = []
    for run, attempts in groups.items():
        newest = max(attempts, key=lambda one: (attempt_of(one.id) or ("", 0))[1])
        state = STATES.get(newest.state, State.FAILED)
        ended = newest.ended
        if state.ended and ended is None:
            ended = (newest.started or 0.0) + (newest.seconds or 0.0)
        rows.append(
            {
                "workspace_id": workspace_id, "id": run, "attempt_id": newest.id, "submitted": False, "title": "",
                "user": str(newest.submission.get("user", ""))[:ID], "target": "", "state": state.value,
                "reason": newest.error, "started": attempts[0].started or 0.0, "ended": ended,
                "seconds": newest.seconds, "stages": newest.stages, "stages_done": newest.stages_done,
                "rows": _rows(newest), "gpu_hours": sum(one.gpu_hours for one in attempts),
                "dollars": sum(one.dollars for one in attempts), "alert": "",
            }
        )  # fmt: skip
    return rows


def _drop_datasets(service: Service, workspace_id: int, workspace: Workspace) -> None:
    """Drop indexed datasets that are gone. Each discovery checks some, those that were checked longest ago first."""
    with service.database.read() as session:
        bases = sorted(session.scalars(select(IndexedDataset.base).where(IndexedDataset.workspace_id == workspace_id)))
    turn = int(service.clock() / 60.0) * CHECKED % max(1, len(bases))
    checked = (bases + bases)[turn : turn + min(CHECKED, len(bases))]
    gone = [base for base in checked if workspace.dataset(base) is None]
    if gone:
        workspace.check()  # else they only seem to be gone
        with service.database.write() as session:
            here = IndexedDataset.workspace_id == workspace_id
            session.execute(delete(IndexedDataset).where(here, IndexedDataset.base.in_(gone)))


# --- rebuilding -------------------------------------------------------------------------------------------------------


def reindex(
    service: Service, workspace: str | None = None, opened: Callable[[str], Workspace] = Workspace
) -> dict[str, Counts]:
    """Rebuild the lists of one workspace, or of every one. Workspace -> number of its runs and datasets. Raises
    CurateError if a workspace does not answer; its lists are then unchanged."""
    with service.database.read() as session:
        chosen = select(WorkspaceRow).order_by(WorkspaceRow.name)
        rows = list(session.scalars(chosen if workspace is None else chosen.where(WorkspaceRow.name == workspace)))
    if workspace is not None and not rows:
        raise CurateError(f"workspace {workspace}: not found")
    return {row.name: _rebuild(service, row, opened(row.url)) for row in rows}


def _rebuild(service: Service, row: WorkspaceRow, workspace: Workspace) -> Counts:
    summaries = _summaries(workspace, [name for name in workspace.run_names() if len(name) <= ID], whole=True)
    with service.database.read() as session:
        known = set(session.scalars(select(Submission.id).where(Submission.workspace_id == row.id)))
    made = [(_attempted(one.id, known) or run, one) for run, one in _in_order(summaries)]
    users = _with_versions(workspace, _pinned(workspace, known) | _builders(made))
    datasets = list(_datasets(row.id, workspace, users))
    by_name = {one.id: one for one in summaries}
    with service.database.write() as session:
        submitted = dict(_submitted(session, row.id, by_name))
        foreign = [one for one in summaries if _attempted(one.id, submitted) is None]
        runs = [*submitted.values(), *_foreign(row.id, foreign)]
        session.execute(delete(IndexedRun).where(IndexedRun.workspace_id == row.id))
        session.execute(delete(IndexedDataset).where(IndexedDataset.workspace_id == row.id))
        if runs:
            session.execute(insert(IndexedRun), runs)
        if datasets:
            session.execute(insert(IndexedDataset), datasets)
    return Counts(len(runs), len(datasets))


def _attempted(name: str, submitted: Container[str]) -> str | None:
    """The submission that a run is an attempt of."""
    attempt = attempt_of(name)
    return attempt[0] if attempt is not None and attempt[0] in submitted else None


def _submitted(
    session: Session, workspace_id: int, summaries: Mapping[str, RunSummary]
) -> Iterator[tuple[str, Values]]:
    """Run -> row, of every submission."""
    chosen = (
        select(Submission, User.name, TargetRow.name)
        .join(User, Submission.user_id == User.id)
        .join(TargetRow, Submission.target_id == TargetRow.id)
        .where(Submission.workspace_id == workspace_id)
        .options(defer(Submission.recipe), defer(Submission.resolved))
    )
    for row, user, target in session.execute(chosen):
        summary = summaries.get(row.attempt_id)
        yield row.id, indexed(row, user, target) | _progress(summary)


def indexed(row: Submission, user: str, target: str) -> Values:
    """The row of a submission in the list of runs, without what only its workspace has."""
    seconds = row.seconds_until(row.ended) if row.ended is not None else None
    return {
        "workspace_id": row.workspace_id, "id": row.id, "attempt_id": row.attempt_id, "submitted": True,
        "title": row.title, "user": user, "target": target, "state": row.state, "reason": row.reason,
        "started": row.created, "ended": row.ended, "seconds": seconds, "stages": 0, "stages_done": 0, "rows": None,
        "gpu_hours": row.gpu_hours, "dollars": row.dollars, "alert": row.alert,
    }  # fmt: skip


def _progress(summary: RunSummary | None) -> Values:
    if summary is None:
        return {}
    return {"stages": summary.stages, "stages_done": summary.stages_done, "rows": _rows(summary)}
