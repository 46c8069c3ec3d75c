"""From YAML and `--set` overrides to a Recipe, before anything is loaded; a mistake is one line with its place."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from curate.core.errors import RecipeError
from distill.recipe.whole import Recipe

RECIPES = Path(__file__).parents[1] / "recipes"


def load_recipe(place: str, overrides: Sequence[str] = ()) -> Recipe:
    """A YAML file, or the name of one that comes with the package. Raises RecipeError, a line with the place in it."""
    path = Path(place)
    if not path.is_file():
        path = RECIPES / f"{place}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(item.stem for item in RECIPES.glob("*.yaml")))
        raise RecipeError(f"{place}: no such recipe file; give a path, or one of: {known}")
    try:
        values = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{place}: not YAML: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{place}: a recipe is a mapping with name, data, teachers and train")
    for override in overrides:
        _override(values, override)
    return parse_recipe(values, place)


def parse_recipe(values: dict[str, Any], place: str) -> Recipe:
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{place}: {_explain(error)}") from None


def apply_overrides(recipe: Recipe, overrides: Sequence[str], place: str) -> Recipe:
    values = recipe.model_dump(mode="json")
    for override in overrides:
        _override(values, override)
    return parse_recipe(values, place)


def _override(values: dict[str, Any], override: str) -> None:
    """`train.steps=100`, `teachers.0.encoder=timm:…`; the value is YAML."""
    name, found, text = override.partition("=")
    if not found:
        raise RecipeError(f"--set {override}: expected name=value, as in train.steps=100")
    *parents, last = name.split(".")
    node: Any = values
    try:
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if isinstance(node, list):
            node[int(last)] = yaml.safe_load(text)
        else:
            node[last] = yaml.safe_load(text)
    except (AttributeError, TypeError, ValueError, IndexError, yaml.YAMLError):
        raise RecipeError(f"--set {override}: the recipe has no place {name}; name it as in train.steps") from None


def _explain(error: ValidationError) -> str:
    """The first problem, as place: what was given, what was expected."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _known(first["loc"][:-1])
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        return f"{place}: unknown; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")
    if first["type"] == "missing":
        return f"{place}: missing; put it into the recipe or give --set {place}=…"
    message = " ".join(first["msg"].removeprefix("Value error, ").split())
    given = "" if first["type"] == "value_error" else f"{first['input']!r}: "
    return f"{place}: {given}{message}" if place else message


def _known(location: tuple[int | str, ...]) -> list[str]:
    """Keys that a place of the recipe may have."""
    model: type[BaseModel] = Recipe
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = _model(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model(annotation: Any) -> type[BaseModel] | None:
    """The section that an annotation holds: itself, or as X | None, list[X], Annotated[X, …]."""
    if get_origin(annotation) is None:
        return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return next((found for item in get_args(annotation) if (found := _model(item)) is not None), None)
