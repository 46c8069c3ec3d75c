"""Entries of `objectives`: the class `objective: package.module:Class`, and its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curate.core.errors import RecipeError
from curate.core.plugins import load_class
from distill.objectives import Objective

KEY = "objective"


def class_of(entry: Mapping[str, Any]) -> type[Objective]:
    """The class that an entry names. Raises RecipeError."""
    name = entry.get(KEY)
    if not isinstance(name, str) or ":" not in name:
        raise RecipeError(f"{KEY}: {name!r} is not a class; expected package.module:Class")
    return load_class(name, Objective, KEY)


def parsed(entry: Any) -> Any:
    """The objective of an entry. Raises ValueError, or pydantic's error about the values."""
    if not isinstance(entry, Mapping):
        return entry
    try:
        cls = class_of(entry)
    except RecipeError as error:
        raise ValueError(str(error)) from error
    return cls.model_validate({name: value for name, value in entry.items() if name != KEY})


def class_name(objective: Objective) -> str:
    """What an entry calls its class."""
    return f"{type(objective).__module__}:{type(objective).__qualname__}"
