"""Recipes of training runs, as typed sections; `load_recipe` reads one from YAML.

run (place and speed) · data (sources, sizes, packing) · student · teachers, contrastive, objectives · init_from ·
train · stages · evaluate
"""

from distill.recipe.data import AugmentRecipe, DataRecipe, SourceRecipe
from distill.recipe.evaluate import EvaluateRecipe
from distill.recipe.init_from import InitFrom
from distill.recipe.load import RECIPES, apply_overrides, load_recipe, parse_recipe
from distill.recipe.recipe import Recipe, StageRecipe
from distill.recipe.run import RunRecipe
from distill.recipe.teacher import RelationsRecipe, TeacherRecipe
from distill.recipe.train import TrainRecipe

__all__ = [
    "RECIPES", "AugmentRecipe", "DataRecipe", "EvaluateRecipe", "InitFrom", "Recipe",
    "RelationsRecipe", "RunRecipe", "SourceRecipe", "StageRecipe", "TeacherRecipe",
    "TrainRecipe", "apply_overrides", "load_recipe", "parse_recipe",
]  # fmt: skip
