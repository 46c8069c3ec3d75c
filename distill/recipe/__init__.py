"""Recipes of training runs, as typed sections; `load_recipe` reads one from YAML.

run (place and speed) · data (sources, sizes, packing) · student · teachers and contrastive · train · stages · evaluate
"""

from distill.recipe.data import AugmentRecipe, DataRecipe, SourceRecipe
from distill.recipe.evaluate import EvaluateRecipe
from distill.recipe.load import RECIPES, apply_overrides, load_recipe, parse_recipe
from distill.recipe.objective import ContrastiveRecipe, RelationsRecipe, TeacherRecipe, TermRecipe
from distill.recipe.recipe import Recipe, StageRecipe
from distill.recipe.run import RunRecipe
from distill.recipe.train import TrainRecipe

__all__ = [
    "RECIPES", "AugmentRecipe", "ContrastiveRecipe", "DataRecipe", "EvaluateRecipe", "Recipe",
    "RelationsRecipe", "RunRecipe", "SourceRecipe", "StageRecipe", "TeacherRecipe", "TermRecipe",
    "TrainRecipe", "apply_overrides", "load_recipe", "parse_recipe",
]  # fmt: skip
