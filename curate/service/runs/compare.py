"""Two runs beside each other: parameters, funnel, keys gained and lost, balance."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import Path, Query

from curate.api import plain
from curate.api.compare import Changed, Comparison
from curate.core.errors import CurateError, InputError
from curate.service.auth.roles import Principal, Role
from curate.service.problems import ConflictProblem, InvalidProblem
from curate.service.rest.routing import InWorkspace, Router, Served, Who, problems
from curate.service.runs.finding import FoundRun, RunId, found
from curate.service.service import Service
from curate.service.shapes import NAME, Shape

router = Router(tags=["runs"])
OtherRun = Annotated[str, Path(alias="other", pattern=NAME, description="Id of another run of the workspace.")]


class CompareShape(Shape):
    first: str
    second: str
    stages: list[dict[str, Any]]
    """Each has its `state` (same, differs, other rows, only in RUN), the `parameters` that differ as pairs, and
    its counts `before` (first run) and `after` (second run)."""
    stage: str
    """Whose rows are compared."""
    keys: dict[str, int] | None
    """Rows that pass it in `both` runs, that the second one has `gained`, and `lost`. Null while they are counted."""
    note: str
    """Why there are no keys."""
    balance: list[list[dict[str, Any]]]
    """For each run, those of its reports."""


@dataclass(frozen=True)
class Pair:
    first: FoundRun
    second: FoundRun
    shape: CompareShape
    stages: list[str]
    """Stages whose rows can be compared, the last one first."""
    counted: Comparison | None
    """What counted the keys, which has read what it compares by key; None while it counts."""

    def comparison(self) -> Comparison:
        """Raises InputError."""
        return self.counted or _comparison(self.first, self.second, self.shape.stage)


@router.get("/runs/{run}/compare/{other}", responses=problems(404, 409, 422))
def compare_runs(
    service: Served,
    who: Who,
    id: RunId,
    other: OtherRun,
    stage: Annotated[str, Query(max_length=200, description="Whose rows to compare; the last common one.")] = "",
    workspace: InWorkspace = None,
) -> CompareShape:
    """What differs between two runs of a workspace. Ask again while the keys are being counted."""
    return pair(service, who, id, other, stage, workspace).shape


def pair(service: Service, who: Principal, id: str, other: str, stage: str, workspace: str | None) -> Pair:
    with service.database.read() as session:
        first = found(session, who, id, workspace, Role.VIEWER)
        second = found(session, who, other, first.place.name, Role.VIEWER)
    for one in (first, second):
        if not one.begun:
            raise ConflictProblem(f"run {one.id}: is {one.state}, not started; it can be compared once it has started")
    key, what = ("compare", first.place.id, first.attempt_id, second.attempt_id), f"comparison of {id} and {other}"
    seconds = min(first.settled, second.settled)
    about, shared = service.kept.get(who, key, lambda: _differences(first, second), what, seconds=seconds)
    if stage and shared and stage not in shared:
        raise InvalidProblem(f"stage: {stage[:80]!r}: not a stage with rows in both runs; give one of {shared}")
    at, keys = stage or next(iter(shared), ""), None
    if shared:
        keys = service.kept.soon(who, (*key, at), lambda: _counted(first, second, at), what, seconds=seconds, wait=0.5)
    note = {"note": keys} if isinstance(keys, str) else {}
    by, known = (keys[0], {"keys": asdict(keys[1])}) if isinstance(keys, tuple) else (None, {})
    shape = CompareShape.model_validate({"stage": at, "keys": None, **about, **note, **known})
    return Pair(first, second, shape, shared, by)


def _differences(first: FoundRun, second: FoundRun) -> tuple[dict[str, Any], list[str]]:
    """(what a shape has without keys, stages whose keys can be compared)."""
    runs = [one.workspace.run(one.attempt_id) for one in (first, second)]
    names = {first.attempt_id: first.id, second.attempt_id: second.id}
    stages = [
        {
            "stage": one.stage, "state": f"only in {names[one.only_in]}" if one.only_in else one.state,
            "parameters": plain(one.parameters), "before": one.before and one.before.to_json(),
            "after": one.after and one.after.to_json(),
        }
        for one in first.workspace.diff(runs[0].id, runs[1].id)
    ]  # fmt: skip
    balance = [run.balance() for run in runs]
    about = {"first": first.id, "second": second.id, "note": "", "stages": stages, "balance": balance}
    try:
        return about, _comparison(first, second).stages
    except InputError as error:
        return about | {"note": str(error)}, []


def _comparison(first: FoundRun, second: FoundRun, stage: str = "") -> Comparison:
    before, after = (one.workspace.run(one.attempt_id).record for one in (first, second))
    return Comparison(before, after, stage)


def _counted(first: FoundRun, second: FoundRun, stage: str) -> tuple[Comparison, Changed] | str:
    try:
        found = _comparison(first, second, stage)
        return found, found.counts()
    except CurateError as error:
        return str(error)
