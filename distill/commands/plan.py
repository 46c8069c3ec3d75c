"""`distill plan`: the steps, images and image tokens of a recipe's stages, from the recipe alone."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from distill.recipe import Recipe
from distill.recipe.stages import check_stages
from distill.training.plan import StagePlan, plan_stages
from distill.training.progress import short


def plan(recipe: Recipe, console: Console) -> list[StagePlan]:
    """Print and return the plan of each stage, as if each image filled the `max_tokens` drawn for it.

    RecipeError for a stage that changes what it may not.
    """
    stages = recipe.staged()
    check_stages(stages)
    plans = plan_stages(stages, [None] * len(stages))
    table = Table("stage", *("steps", "sequences a step", "images a step", "tokens a sequence", "image tokens"))
    for column in table.columns[1:]:
        column.justify = "right"
    for number, one in enumerate(plans):
        images = one.sequences * one.images
        cells = (f"{one.steps:,}", f"{one.sequences:,.0f}", f"{images:,.0f}", f"{one.tokens:,.0f}", short(one.total))
        table.add_row(str(number), *cells)
    console.print(table)
    line = f"{sum(one.steps for one in plans):,} steps, {short(sum(one.total for one in plans))} image tokens if each "
    console.print(f"{line}image fills its max_tokens", highlight=False, soft_wrap=True)
    return plans
