"""Recipes and ops."""

from __future__ import annotations

from curate.service.actions import recipes
from curate.service.rest.deps import CHECKS, Router, Served, Who, problems
from curate.service.shapes.recipes import OpShape, Template
from curate.service.shapes.runs import Checked, Planned, RecipeOrder

router = Router(tags=["recipes"])
CHECKED = problems(403, 404, 422, 429)


@router.post("/recipes/check", dependencies=CHECKS, responses=CHECKED)
def check_recipe(service: Served, who: Who, order: RecipeOrder) -> Checked:
    """Whether a recipe may be submitted to a workspace, and its stages. Mistakes are part of the answer."""
    return recipes.check(service, who, order)


@router.post("/recipes/plan", dependencies=CHECKS, responses=CHECKED)
def plan_recipe(service: Served, who: Who, order: RecipeOrder) -> Planned:
    """The same, with what a run would compute."""
    return recipes.plan(service, who, order)


@router.get("/recipes", responses=problems(403))
def list_recipes(service: Served, who: Who) -> list[Template]:
    """Recipes to start from."""
    return recipes.templates(service, who)


@router.get("/ops", responses=problems(403))
def list_ops(service: Served, who: Who) -> list[OpShape]:
    """What recipes can use, with parameters."""
    return recipes.ops(service, who)
