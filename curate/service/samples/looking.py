"""The run whose samples are asked for, and what it has made so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Path

from curate.api import Entry, Run
from curate.api.slices import WITH_ROWS
from curate.service.auth.roles import Principal, Role
from curate.service.problems import ConflictProblem, ForbiddenProblem, InvalidProblem
from curate.service.rest.routing import problems
from curate.service.runs.finding import FoundRun, found
from curate.service.service import Service

RunName = Annotated[str, Path(max_length=64)]
SAMPLE = problems(403, 404, 409, 422)


@dataclass(frozen=True)
class Made:
    """What a run has made so far. `bases`: stage that is done -> folder of its output, in the order of the DAG."""

    ops: Mapping[str, str]
    bases: Mapping[str, str]
    ledger: Mapping[str, Entry]
    kinds: Mapping[str, str]
    """Stage -> kind of its artifact."""
    captions: bool = True
    """Whether there are texts to compare with the images."""
    blurred: bool = False
    """Whether rejects are blurred unless the reader asks for sharp ones."""

    @property
    def with_rows(self) -> list[str]:
        return [name for name, base in self.bases.items() if base.startswith(WITH_ROWS)]

    @property
    def maps(self) -> list[str]:
        """Stages that placed rows on a map."""
        return [name for name in self.bases if self.ops[name] == "project.place"]

    def rejected(self, stage: str) -> dict[str, int]:
        """Reason -> rows that the stage rejected for it, the most first."""
        entry = self.ledger.get(stage)
        return dict(sorted(entry.left.items(), key=lambda one: (-one[1], one[0]))) if entry else {}


@dataclass(frozen=True)
class Looked:
    """A run as its reader sees it."""

    one: FoundRun
    run: Run
    made: Made
    pixels: bool
    """Whether they see images and videos."""
    role: Role


def looked(service: Service, who: Principal, run: str, workspace: str | None) -> Looked:
    """Raises NotFoundProblem, and ConflictProblem for a run that has not started."""
    with service.database.read() as session:
        one = found(session, who, run, workspace, Role.VIEWER)
    if not one.begun:
        raise ConflictProblem(f"run {run}: is {one.state}, not started; its samples are known once stages are done")
    attempt, role = one.workspace.run(one.attempt_id), who.role(one.place.id)

    def make() -> Made:
        record = attempt.record
        outputs = record.outputs
        bases = {name: str(outputs[name]["base"]) for name in record.record["stages"] if name in outputs}
        blurred = blurs(record.record.get("recipe") or {}, record.ops().values())
        return Made(record.ops(), bases, record.ledger(), record.kinds(), attempt.has_captions(), blurred)

    kept = ("made", one.place.id, one.attempt_id)
    made = service.kept.get(who, kept, make, f"record of run {run}", seconds=max(10.0, one.settled - 5.0))
    assert role is not None
    return Looked(one, attempt, made, who.sees_pixels(one.place.id), role)


def blurs(recipe: Mapping[str, Any], ops: Iterable[str]) -> bool:
    """Whether a run's rejects are blurred: what `blur` of the recipe's `vars` says, or if it downloads."""
    return bool((recipe.get("vars") or {}).get("blur", "acquire.download" in ops))


def check_pixels(seen: Looked) -> None:
    """Raises ForbiddenProblem."""
    if not seen.pixels:
        name = seen.one.place.name
        raise ForbiddenProblem(f"workspace {name}: images need the role operator or `see_pixels`; ask an admin")


def too_many(text: str) -> None:
    """`explain` is about to read the tables of a large pool."""
    raise InvalidProblem(f"{text} takes too long here; give the key, or use `curate explain` on a machine")
