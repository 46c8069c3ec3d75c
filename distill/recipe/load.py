"""From YAML and `--set` overrides to a Recipe, before anything is loaded. Every mistake is one line with its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from curate.core.errors import RecipeError, did_you_mean
from curate.core.recipe.document import Document, Place, first_problem, message, parse_override
from distill.objectives import Objective
from distill.recipe.objectives import class_of
from distill.recipe.recipe import InvalidStage, Recipe

RECIPES = Path(__file__).parents[1] / "recipes"


def load_recipe(place: str, overrides: Sequence[str] = ()) -> Recipe:
    """A YAML file, or the name of a recipe of the package. Raises RecipeError (one line)."""
    path = Path(place)
    if not path.is_file():
        path = RECIPES / f"{place}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(item.stem for item in RECIPES.glob("*.yaml")))
        raise RecipeError(f"{place}: no such recipe file; give a path, or one of: {known}")
    document = Document.read(path, place)
    if not isinstance(document.values, dict):
        raise RecipeError(f"{place}: a recipe is a mapping with name, data, teachers and train")
    return _recipe(document, overrides)


def parse_recipe(values: dict[str, Any], place: str) -> Recipe:
    """place: the name of the values in messages."""
    return _recipe(Document(values, place))


def apply_overrides(recipe: Recipe, overrides: Sequence[str], place: str) -> Recipe:
    return _recipe(Document(recipe.model_dump(mode="json"), place), overrides)


def _recipe(document: Document, overrides: Sequence[str] = ()) -> Recipe:
    for override in overrides:
        name, _, value = parse_override(override, "name=value, as in train.steps=100", secret=False)
        document.override(name, name.split("."), value)
    try:
        return Recipe.model_validate(document.values)
    except ValidationError as error:
        raise _explained(error, document.values, document) from None


def _explained(error: ValidationError, values: Any, document: Document, above: Place = ()) -> RecipeError:
    """Line, place, value and what was expected. `values` are those of the place `above`."""
    place, problem = first_problem(error, values)
    inner = problem.get("ctx", {}).get("error")
    if isinstance(inner, InvalidStage):
        return _explained(inner.error, inner.values, document, (*above, "stages", inner.number))
    name, text = ".".join(map(str, (*above, *place))), message(problem)
    if problem["type"] == "extra_forbidden":
        known = _known(place[:-1], values)
        text = "unknown; " + did_you_mean(str(place[-1]), known, f"known: {', '.join(known)}")
    elif problem["type"] == "missing" and isinstance(problem["loc"][-1], int):
        text = f"{list(problem['input'])!r}: expected more values than {len(problem['input'])}"
    elif problem["type"] == "missing":
        text = f"missing; set it in the recipe or by --set {name}=…"
    elif problem["type"] != "value_error":
        text = f"{problem['input']!r}: {text}"
    return RecipeError(": ".join(filter(None, (document.line((*above, *place)), name, text))))


def _known(place: Place, values: Any) -> list[str]:
    """Keys that a section of the recipe may have."""
    model: type[BaseModel] = Recipe
    for part in place:
        values = values[part]
        if isinstance(part, str) and part in model.model_fields:
            model = _model(model.model_fields[part].annotation) or model
        elif issubclass(model, Objective):
            model = class_of(values)
    return list(model.model_fields)


def _model(annotation: Any) -> type[BaseModel] | None:
    """The section that an annotation holds: itself, or as X | None, list[X], Annotated[X, …]."""
    if get_origin(annotation) is None:
        return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return next((found for item in get_args(annotation) if (found := _model(item)) is not None), None)
