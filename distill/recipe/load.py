"""From YAML and `--set` overrides to a Recipe, before anything is loaded; a mistake is one line with its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from curate.core.errors import RecipeError
from distill.recipe.explain import explain
from distill.recipe.whole import Recipe

RECIPES = Path(__file__).parents[1] / "recipes"


class _Loader(yaml.SafeLoader):
    """With `1e3` a number, as YAML 1.2 and everybody else have it; a key is given once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for name in names:
            if names.count(name) > 1 and name != "<<":
                raise yaml.YAMLError(f"{name} is given twice")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def read_yaml(text: str) -> Any:
    """Raises yaml.YAMLError."""
    try:
        return yaml.load(text, _Loader)
    except (ValueError, RecursionError) as error:  # of 2024-99-99, of 0b_, of thousands of brackets
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from None


def load_recipe(place: str, overrides: Sequence[str] = ()) -> Recipe:
    """A YAML file, or the name of one that comes with the package. Raises RecipeError, a line with the place in it."""
    path = Path(place)
    if not path.is_file():
        path = RECIPES / f"{place}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(item.stem for item in RECIPES.glob("*.yaml")))
        raise RecipeError(f"{place}: no such recipe file; give a path, or one of: {known}")
    values = read_recipe(path, place)
    for override in overrides:
        _override(values, override)
    return parse_recipe(values, place)


def read_recipe(path: Path, place: str) -> dict[str, Any]:
    """The values of a file. place: what messages call it."""
    try:
        values = read_yaml(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{place}: not YAML: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{place}: a recipe is a mapping with name, data, teachers and train")
    return values


def parse_recipe(values: dict[str, Any], place: str) -> Recipe:
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{place}: {explain(error, values)}") from None


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
    try:
        value = read_yaml(text)
    except yaml.YAMLError:
        raise RecipeError(f"--set {override}: the value is no YAML; quote it, or close its brackets") from None
    node: Any = values
    *parents, last = name.split(".")
    for depth, part in enumerate([*parents, last]):
        place = ".".join(parents[:depth])
        if isinstance(node, list):
            if not part.isdecimal() or int(part) >= len(node):
                raise RecipeError(
                    f"--set {override}: the recipe has no place {name}; {place} has the entries 0 to {len(node) - 1}"
                    if node
                    else f"--set {override}: the recipe has no place {name}; {place} is empty, give the whole list"
                )
        elif not isinstance(node, dict) or not part:
            raise RecipeError(f"--set {override}: the recipe has no place {name}; name it as in train.steps")
        if depth < len(parents):
            if isinstance(node, dict) and node.get(part) is None:
                node[part] = {}
            node = node[int(part) if isinstance(node, list) else part]
    node[int(last) if isinstance(node, list) else last] = value
