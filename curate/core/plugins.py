"""Classes from outside of the package, named in recipes as `package.module:Class`."""

from __future__ import annotations

import importlib
from typing import TypeVar

from curate.core.errors import RecipeError

T = TypeVar("T")


def load_class(target: str, base: type[T], place: str) -> type[T]:
    """The class that `package.module:Class` names. place: the value of the recipe that names it, for messages.

    Raises RecipeError if it cannot be imported or is not derived from `base`.
    """
    module, _, name = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"{place}: cannot import {target!r} ({error}); check the name or install its package"
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        article = "an" if base.__name__[0] in "AEIOU" else "a"
        public = f"{base.__module__.rpartition('.')[0]}.{base.__name__}"
        raise RecipeError(f"{place}: {target!r} is not {article} {base.__name__}; give a class derived from {public}")
    return found
