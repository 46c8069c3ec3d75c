"""Bounds of a recipe, checked before its values are built: size, form of the YAML, names, and interpolation.

YAML has no anchors, aliases, tags and merge keys here, since they multiply values or construct objects. Interpolation
is `${name}` of a variable or a stage's parameter, without resolvers, and its result is bounded before it is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from curate.core.errors import RecipeError
from curate.core.recipe.document import MAX_DEPTH, RecipeLoader, parse_override
from curate.service.problems import PolicyProblem, TooLargeProblem
from curate.service.settings import Limits

FILE = "recipe"
"""The recipe's name in messages."""
STAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
SET_PARTS = 12
"""Most parts of the name of an override: stage.parameter.key."""
CHAIN = 20
"""Most variables in a row that refer to each other."""
WIDEST = 1 << 63
"""Integers are smaller, as they are in tables."""
_REFERENCE = re.compile(r"\$\{\s*([A-Za-z_][\w-]*(?:\.[\w-]+|\[\w+\])*)\s*\}", re.ASCII)
_PARTS = re.compile(r"[\w-]+", re.ASCII)


def check_text(text: str, sets: Sequence[str], limits: Limits) -> None:
    """Check the recipe and its overrides as they were sent. Raises TooLargeProblem, PolicyProblem or RecipeError."""
    try:
        size = sum(len(part.encode()) for part in (text, *sets))
    except UnicodeEncodeError:
        raise RecipeError(f"{FILE}: not valid Unicode; save it as UTF-8") from None
    if size > limits.recipe_bytes:
        raise TooLargeProblem(
            f"{FILE}: {size:,} bytes with its overrides; at most {limits.recipe_bytes:,}. Move long lists into files"
        )
    _check_yaml(text, FILE, limits)
    for given in sets:
        name, equals, value = given.partition("=")
        if equals and name.count(".") >= SET_PARTS:
            raise TooLargeProblem(f"--set: a name with more than {SET_PARTS} parts; set the whole parameter")
        if equals:
            _check_yaml(value, "--set", limits)
        parse_override(given, "name=value or stage.parameter=value")


def _check_yaml(text: str, place: str, limits: Limits) -> None:
    """Stops at the first problem, so that the time is bounded. Leaves syntax errors to `Document`, which explains
    them."""
    values = depth = 0
    try:
        for event in yaml.parse(text, RecipeLoader):
            _check_event(event, place)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            values += isinstance(event, yaml.NodeEvent)
            if depth > MAX_DEPTH:
                raise TooLargeProblem(f"{_at(event, place)}: nested more than {MAX_DEPTH} levels deep; nest less")
            if values > limits.recipe_values:
                raise TooLargeProblem(f"{place}: more than {limits.recipe_values:,} values; move long lists into files")
    except (yaml.YAMLError, RecursionError):
        return


def _check_event(event: yaml.Event, place: str) -> None:
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
        raise PolicyProblem(
            f"{_at(event, place)}: anchors and aliases (&, *) are not allowed; use `vars` and ${{name}}"
        )
    if getattr(event, "tag", None):
        raise PolicyProblem(f"{_at(event, place)}: tags (!) are not allowed; quote a text that begins with !")
    if isinstance(event, yaml.DocumentStartEvent) and (event.version or event.tags):
        raise PolicyProblem(f"{_at(event, place)}: directives (%) are not allowed; remove the line")
    if isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]:
        raise PolicyProblem(f"{_at(event, place)}: merge keys (<<) are not allowed; write the values out")


def _at(event: yaml.Event, place: str) -> str:
    return f"{place}:{event.start_mark.line + 1}" if place == FILE and event.start_mark else place


# --- values, after overrides ------------------------------------------------------------------------------------------


def check_values(values: dict[str, Any], limits: Limits) -> None:
    """Check names, numbers and interpolation, so that resolving is harmless. Raises TooLargeProblem, PolicyProblem or
    RecipeError."""
    stages = values["stages"]
    if len(stages) > limits.recipe_stages:
        raise TooLargeProblem(f"{FILE}: {len(stages):,} stages; at most {limits.recipe_stages:,}. Split the recipe")
    for name in stages:
        if not isinstance(name, str) or not STAGE.fullmatch(name):
            raise PolicyProblem(
                f"{FILE}: {_short(name)}: not a stage's name; expected at most 64 letters, digits, _ and -"
            )
    _check_parts(values, limits)
    _Expansion({**(values["vars"] or {}), "stages": stages, "workspace": values.get("workspace")}, limits).check()


def check_resolved(values: dict[str, Any], limits: Limits) -> None:
    """Check what stages are built from: texts joined from pieces may form a new interpolation, which the job would
    resolve."""
    for part in _check_parts({name: values[name] for name in ("stages", "workspace")}, limits):
        if isinstance(part, str) and "${" in part:
            raise PolicyProblem(f"{FILE}: {_short(part)}: interpolation that yields interpolation; write the value out")


def _check_parts(values: dict[str, Any], limits: Limits) -> list[Any]:
    """All scalars and keys, after checking their number, their depth and integers."""
    found: list[Any] = []
    for part, depth in _parts(values):
        found.append(part)
        if len(found) > 2 * limits.recipe_values or depth > MAX_DEPTH:
            raise TooLargeProblem(f"{FILE}: too many values with its overrides and variables; use fewer")
        if isinstance(part, int) and not -WIDEST <= part < WIDEST:
            raise RecipeError(f"{FILE}: an integer of more than 64 bits; give a smaller one")
        if isinstance(part, bytes):
            raise PolicyProblem(f"{FILE}: binary values are not allowed; give a text")
    return found


def _parts(value: Any, depth: int = 0) -> Iterator[tuple[Any, int]]:
    if depth <= MAX_DEPTH + 1 and isinstance(value, dict):
        for key, item in value.items():
            yield key, depth
            yield from _parts(item, depth + 1)
    elif depth <= MAX_DEPTH + 1 and isinstance(value, list):
        for item in value:
            yield from _parts(item, depth + 1)
    else:
        yield value, depth


class _Expansion:
    """Cost of resolving a recipe, computed without resolving it: the characters of each value, and a share for the
    value itself."""

    def __init__(self, tree: dict[str, Any], limits: Limits) -> None:
        self._tree, self._most = tree, 4 * limits.recipe_bytes
        self._share = self._most // (2 * limits.recipe_values)
        self._known: dict[tuple[str, ...], tuple[int, int]] = {}
        self._open: list[tuple[str, ...]] = []

    def check(self) -> None:
        try:
            self._cost(self._tree)
        except RecursionError:
            raise TooLargeProblem(f"{FILE}: its variables are nested too deeply; nest less") from None

    def _cost(self, value: Any) -> tuple[int, int]:
        """(cost, most references in a row) of a value."""
        if isinstance(value, dict):
            parts = [self._cost(item) for item in value.values()]
            own = sum(len(str(key)) + 4 for key in value)
        elif isinstance(value, list):
            parts, own = [self._cost(item) for item in value], 0
        elif isinstance(value, str):
            parts, own = [self._cost_of_reference(name) for name in _references(value)], len(value)
        else:
            parts, own = [], 20
        cost = self._share + own + sum(part[0] for part in parts)
        if cost > self._most:
            raise TooLargeProblem(
                f"{FILE}: its variables expand to more than {self._most:,} characters; repeat them less"
            )
        return cost, max((part[1] for part in parts), default=0)

    def _cost_of_reference(self, name: str) -> tuple[int, int]:
        path = tuple(_PARTS.findall(name))
        if path in self._open:
            raise RecipeError(f"{FILE}: ${{{name}}} refers to itself; write the value out")
        if path not in self._known:
            self._open.append(path)
            cost, row = self._cost(self._lookup(path, name))
            self._known[path] = cost, row + 1
            self._open.pop()
        if len(self._open) + self._known[path][1] > CHAIN:
            raise TooLargeProblem(f"{FILE}: ${{{name}}}: more than {CHAIN} variables refer to each other; use fewer")
        return self._known[path]

    def _lookup(self, path: tuple[str, ...], name: str) -> Any:
        """A value; None for one that does not exist, which resolving explains."""
        value: Any = self._tree
        for part in path:
            number = int(part) if part.isdecimal() and len(part) < 10 else None
            if isinstance(value, str) and "${" in value:
                raise PolicyProblem(f"{FILE}: ${{{name}}} leads through {value!r}; refer to its value directly")
            if isinstance(value, dict):
                value = value.get(part, value.get(number))
            elif isinstance(value, list) and number is not None and number < len(value):
                value = value[number]
            else:
                return None
        return value


def _references(text: str) -> list[str]:
    """Names of the variables in a text. Raises PolicyProblem for any other interpolation."""
    found = _REFERENCE.findall(text)
    if len(found) != text.count("${") or "\\${" in text:
        raise PolicyProblem(
            f"{FILE}: {_short(text)}: expected ${{name}} of a variable, or of a stage's parameter as in "
            "${stages.pool.path}; no resolvers, no nesting, no escapes"
        )
    return found


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
