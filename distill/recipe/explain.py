"""What is wrong with a recipe, as one line: place, what was given, what was expected."""

from __future__ import annotations

import difflib
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from distill.recipe.whole import Recipe, StageError

Place = tuple[int | str, ...]


def explain(error: ValidationError, values: Any, above: Place = ()) -> str:
    """The first problem, where it lies deepest: of a value that may be of several types, the type that it nearly is.

    values: what was given; above: the place where they belong.
    """
    problems = [(_place(item, values), item) for item in error.errors()]
    first = problems[0][0]
    same = [item for item in problems if item[0][: len(first)] == first]
    place, worst = max(same, key=lambda item: (len(item[0]), not item[1]["type"].endswith("_type")))
    inner = worst.get("ctx", {}).get("error")
    if isinstance(inner, StageError):
        return explain(inner.error, inner.values, (*above, "stages", inner.number))
    return _said(worst, place, ".".join(map(str, (*above, *place))))


def _place(item: ErrorDetails, values: Any) -> Place:
    """Without what pydantic adds for the types that it has tried, and without the numbers of a pair's halves."""
    node, place = values, list[int | str]()
    for part in item["loc"]:
        if isinstance(node, dict) and (part in node or _number(part) in node):
            key = part if part in node else _number(part)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            key = part
        else:
            continue
        node = node[key]
        place.append(part)
    if item["type"] == "missing" and isinstance(item["loc"][-1], str):
        place.append(item["loc"][-1])
    return tuple(place)


def _number(part: int | str) -> int | str:
    return int(part) if isinstance(part, str) and part.lstrip("-").isdecimal() else part


def _said(item: ErrorDetails, place: Place, name: str) -> str:
    if item["type"] == "extra_forbidden":
        known = _known(place[:-1])
        near = difflib.get_close_matches(str(place[-1]), known, n=1)
        return f"{name}: unknown; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")
    if item["type"] == "missing" and isinstance(item["loc"][-1], int):
        return f"{name}: {list(item['input'])!r}: expected more values than {len(item['input'])}"
    if item["type"] == "missing":
        return f"{name}: missing; put it into the recipe or give --set {name}=…"
    message = " ".join(item["msg"].removeprefix("Value error, ").split())
    given = "" if item["type"] == "value_error" else f"{item['input']!r}: "
    return f"{name}: {given}{message}" if name else message


def _known(place: Place) -> list[str]:
    """Keys that a place of the recipe may have."""
    model: type[BaseModel] = Recipe
    for part in place:
        if isinstance(part, str) and part in model.model_fields:
            model = _model(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model(annotation: Any) -> type[BaseModel] | None:
    """The section that an annotation holds: itself, or as X | None, list[X], Annotated[X, …]."""
    if get_origin(annotation) is None:
        return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return next((found for item in get_args(annotation) if (found := _model(item)) is not None), None)
