"""Datasets by tag, `curate://SERVER/NAME@TAG`: resolved once, before a command opens anything."""

from __future__ import annotations

import json
import os

from rich.console import Console

from distill.recipe import Recipe
from distill.recipe.data import TagRecipe
from distill.samples.sources.tagged import recorded_tags, resolve, tags_of, with_tags
from distill.training.run_folder import resumed_recipe


def with_resolved_tags(recipe: Recipe, console: Console, *, resume: bool = False) -> Recipe:
    """The recipe with the datasets that its tags are now. With `resume`, those of the run that it resumes, if any."""
    tags = tags_of(recipe)
    if not tags:
        return recipe

    def found() -> str:
        before = resumed_recipe(recipe) if resume else None
        held = {} if before is None else recorded_tags(before)
        return json.dumps([(held.get(tag) or resolve(tag)).model_dump() for tag in tags])

    if os.environ.get("WORLD_SIZE", "1") == "1":
        text = found()
    else:
        from distill.parallel import from_first_rank

        text = from_first_rank("tags", found)
    resolved = [TagRecipe.model_validate(tag) for tag in json.loads(text)]
    if os.environ.get("RANK", "0") == "0":
        for tag in resolved:
            line = f"{tag.url}: {tag.dataset} (as of {tag.resolved})"
            console.print(line, highlight=False, soft_wrap=True, markup=False)
    return with_tags(recipe, {tag.url: tag for tag in resolved})
