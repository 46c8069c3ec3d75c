"""Recipes: check, plan, and what an editor offers. Nothing here runs a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import select

from curate.api import RunRecord
from curate.api.recipes import recipe_of
from curate.core.errors import CurateError
from curate.core.recipe.document import Document
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import Registration
from curate.service.places.workspaces import workspace_row
from curate.service.policy.rules import Rules
from curate.service.policy.sandbox import Outcome
from curate.service.problems import InvalidProblem, PolicyProblem, Problem, TooLargeProblem
from curate.service.rest.routing import CHECKS, Router, Served, Who, problems
from curate.service.runs.finding import FoundRun
from curate.service.runs.shapes import Checked, Mistake, Planned, PlanStage, RecipeOrder, StageLine
from curate.service.service import Service
from curate.service.shapes import Shape

router = Router(tags=["recipes"])
CHECKED = problems(403, 404, 422, 429)
SHOWN_MISTAKES = 3
"""More are counted in the message of a rejected submission."""


class Template(Shape):
    """A recipe to start from."""

    name: str
    description: str
    text: str
    """YAML."""


class ParameterShape(Shape):
    name: str
    type: str
    """In the notation of recipes: `int | null`, `random | closest`."""
    default: str
    """JSON, or `required`."""
    kind: str
    """semantic, runtime, secret or input."""
    description: str
    leads_to: str
    """What the value leads to, which has to be registered: path, file, endpoints, prompt, encoder, proxy, network,
    secret; "" for a plain value."""


class OpShape(Shape):
    """A stage that recipes can use."""

    name: str
    contract: str
    summary: str
    """One line."""
    doc: str
    parameters: list[ParameterShape]


@dataclass(frozen=True)
class Admitted:
    """A recipe that may run."""

    resolved: str
    """As the job runs it: variables and registered names replaced, without interpolation."""
    needs: dict[str, Any]
    """{"gpus": most of a task, "stage": the stage that needs them}."""
    stages: list[StageLine]


def changed(one: FoundRun, record: RunRecord, sets: list[str]) -> RecipeOrder:
    """A run's recipe with further values of `set`: as it was submitted, or from the run's record if the service has not
    submitted it. Raises InputError if the record has none."""
    if one.row is None:
        return RecipeOrder(workspace=one.place.name, recipe=recipe_of(record), set=sets)
    return RecipeOrder(workspace=one.place.name, recipe=one.row.recipe, set=[*one.row.sets, *sets])


@router.post("/recipes/check", dependencies=CHECKS, responses=CHECKED)
def check_recipe(service: Served, who: Who, order: RecipeOrder) -> Checked:
    """Whether a recipe may be submitted to a workspace, and its stages. Mistakes are part of the answer."""
    outcome = service.sandbox.check(order.recipe, order.set, _rules(service, who, order))
    return Checked(ok=not outcome.mistakes, mistakes=_mistakes(outcome), stages=_stages(outcome))


@router.post("/recipes/plan", dependencies=CHECKS, responses=CHECKED)
def plan_recipe(service: Served, who: Who, order: RecipeOrder) -> Planned:
    """The same, with what a run would compute."""
    outcome = service.sandbox.plan(order.recipe, order.set, _rules(service, who, order))
    lines = [PlanStage(**line) for line in outcome.plan]
    return Planned(ok=not outcome.mistakes, mistakes=_mistakes(outcome), stages=_stages(outcome), plan=lines)


def admitted(service: Service, who: Principal, order: RecipeOrder) -> Admitted:
    """The recipe as a job may run it. Raises PolicyProblem, TooLargeProblem or InvalidProblem."""
    outcome = service.sandbox.check(order.recipe, order.set, _rules(service, who, order))
    if outcome.mistakes:
        raise _problem(_mistakes(outcome))
    return Admitted(outcome.resolved, outcome.needs, _stages(outcome))


@router.get("/recipes", responses=problems(403))
def list_recipes(service: Served, who: Who) -> list[Template]:
    """Recipes to start from."""
    who.check_anywhere()
    found: dict[str, Template] = {}
    for folder in service.settings.recipes:
        for path in sorted(Path(folder).glob("*.yaml")):
            if path.stem not in found and (template := _template(path, service.settings.limits.recipe_bytes)):
                found[path.stem] = template
    return [found[name] for name in sorted(found)]


@router.get("/ops", responses=problems(403))
def list_ops(service: Served, who: Who) -> list[OpShape]:
    """What recipes can use, with parameters."""
    who.check_anywhere()
    return [OpShape(**op) for op in service.sandbox.ops()]


def _rules(service: Service, who: Principal, order: RecipeOrder) -> Rules:
    """What the workspace admits. Raises ForbiddenProblem for those who may not submit there."""
    with service.database.read() as session:
        row = workspace_row(session, who, order.workspace, Role.OPERATOR)
        return Rules.of(row, session.scalars(select(Registration)))


def _mistakes(outcome: Outcome) -> list[Mistake]:
    return [Mistake(**mistake) for mistake in outcome.mistakes]


def _stages(outcome: Outcome) -> list[StageLine]:
    return [StageLine(**stage) for stage in outcome.stages]


def _problem(mistakes: list[Mistake]) -> Problem:
    shown = "; ".join(f"{f'line {one.line}: ' if one.line else ''}{one.text}" for one in mistakes[:SHOWN_MISTAKES])
    more = len(mistakes) - SHOWN_MISTAKES
    text = f"recipe: {shown}{f'; and {more} more' if more > 0 else ''}"
    kinds = {"policy": PolicyProblem, "too_large": TooLargeProblem}
    return kinds.get(mistakes[0].code, InvalidProblem)(text)


def _template(path: Path, most_bytes: int) -> Template | None:
    """None for a file that is not a recipe, which a folder may have too."""
    try:
        state = path.stat()
        return _read(path, state.st_mtime_ns) if state.st_size <= most_bytes else None
    except OSError:
        return None


@lru_cache(maxsize=256)
def _read(path: Path, changed_ns: int) -> Template | None:
    try:
        text = path.read_text("utf-8")
        values = Document.parse(text, path.name).values
    except (OSError, UnicodeDecodeError, CurateError):
        return None
    if not isinstance(values, dict) or "stages" not in values:
        return None
    return Template(name=path.stem, description=str(values.get("description") or ""), text=text)
