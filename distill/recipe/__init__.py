"""What a run trains, as typed sections; `load_recipe` reads one from YAML.

run (place and speed) · data (sources, sizes, packing) · student · teachers and contrastive · train · stages · evaluate
"""

from distill.recipe.data import AugmentRecipe, DataRecipe, SourceRecipe
from distill.recipe.evaluate import EvaluateRecipe
from distill.recipe.load import RECIPES, apply_overrides, load_recipe, parse_recipe, read_recipe
from distill.recipe.objective import ContrastiveRecipe, RelationsRecipe, TeacherRecipe, TermRecipe
from distill.recipe.run import RunRecipe
from distill.recipe.student import MoeRecipe, StudentRecipe, TextRecipe
from distill.recipe.train import TrainRecipe
from distill.recipe.whole import Recipe, StageRecipe

__all__ = [
    "RECIPES", "AugmentRecipe", "ContrastiveRecipe", "DataRecipe", "EvaluateRecipe", "MoeRecipe", "Recipe",
    "RelationsRecipe", "RunRecipe", "SourceRecipe", "StageRecipe", "StudentRecipe", "TeacherRecipe", "TermRecipe",
    "TextRecipe", "TrainRecipe", "apply_overrides", "load_recipe", "parse_recipe", "read_recipe",
]  # fmt: skip
