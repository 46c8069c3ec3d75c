"""Recipe files: YAML with the line of every key, `--set` overrides, and problems as one line.

Recipes of stages (`curate run`) and of training (`distill train`) are read here. Messages about YAML and `--set` leave
the value out, because it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from curate.core.errors import RecipeError

Place = tuple[int | str, ...]
"""Mapping keys and list positions that lead to a value."""


class _Loader(yaml.SafeLoader):
    """Reads `1e3` as a number, as YAML 1.2 does."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


@dataclass
class Document:
    """The values of a recipe file and the line of every key. `file` is its name in messages."""

    values: Any
    file: str
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path, file: str = "") -> Self:
        """Raises RecipeError if the file cannot be read or is not YAML."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"{file or path}: cannot be read ({error}); give a recipe's YAML file") from None
        return cls.parse(text, file or str(path))

    @classmethod
    def parse(cls, text: str, file: str) -> Self:
        try:
            root = yaml.compose(text, Loader=_Loader)
            document = cls(_read(text), file)
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f":{mark.line + 1}" if mark else ""
            raise RecipeError(f"{file}{line}: not YAML ({_problem(error)}); fix the line") from None
        document._add_lines(root, ())
        return document

    def _add_lines(self, node: yaml.Node | None, path: tuple[str, ...]) -> None:
        """Raises RecipeError for a key set twice, of which YAML would silently keep the last."""
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self.lines[*path, str(number)] = item.start_mark.line + 1
                self._add_lines(item, (*path, str(number)))
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                place, line = (*path, str(key.value)), key.start_mark.line + 1
                if place in self.lines and key.value != "<<":
                    name = ".".join(place)
                    raise RecipeError(f"{self.file}:{line}: {name} is set twice (first in line {self.lines[place]})")
                self.lines[place] = line
                self._add_lines(value, place)

    def line(self, *places: Place) -> str:
        """`file:line` of the first place that has a line, or whose parents have one; otherwise `file`."""
        for place in places:
            names = tuple(map(str, place))
            for depth in range(len(names), 0, -1):
                if names[:depth] in self.lines:
                    return f"{self.file}:{self.lines[names[:depth]]}"
        return self.file

    def override(self, name: str, place: Sequence[str], value: Any) -> None:
        """Set the value at a place, as `--set name=value` asks. Missing mappings are created, list entries are not."""
        node = self.values
        *parents, last = place
        for depth, part in enumerate(place):
            parent = ".".join(place[:depth])
            if isinstance(node, list) and not (part.isdecimal() and int(part) < len(node)):
                remedy = f"has the entries 0 to {len(node) - 1}" if node else "is empty; set the whole list"
                raise RecipeError(f"--set {name}: {parent} {remedy}")
            if not part:
                raise RecipeError(f"--set {name}: a part of the name is empty; expected a name such as train.steps")
            if not isinstance(node, (dict, list)):
                raise RecipeError(f"--set {name}: cannot set {part!r} in a single value; set the whole value")
            if depth < len(parents):
                if isinstance(node, dict) and node.get(part) is None:
                    node[part] = {}
                node = node[int(part) if isinstance(node, list) else part]
        node[int(last) if isinstance(node, list) else last] = value


def parse_override(override: str, form: str = "name=value") -> tuple[str, str, Any]:
    """`name=YAML` -> the name, the text and the value."""
    name, equals, text = override.partition("=")
    if not equals or not re.fullmatch(r"[\w.-]+", name):
        raise RecipeError(f"--set: expected {form}")
    try:
        value = _read(text)
        Document(value, f"--set {name}")._add_lines(yaml.compose(text, Loader=_Loader), ())
        return name, text, value
    except (yaml.YAMLError, RecursionError) as error:
        raise RecipeError(f"--set {name}: the value is not YAML ({_problem(error)}); quote it") from None


def _read(text: str) -> Any:
    """YAML -> values. A date such as 2024-99-99, or a tag that does not fit, makes its constructors raise others."""
    try:
        return yaml.load(text, _Loader)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise yaml.YAMLError("a value does not fit its type") from None


def _problem(error: Exception) -> str:
    """The parser's message without the names that it quotes: a secret that begins with * or ! is parsed as one."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return re.sub(r"(alias|tag|handle|anchor)\b.* [\"'].*", r"\1", str(getattr(error, "problem", None) or error))


# --- what pydantic finds ----------------------------------------------------------------------------------------------


def first_problem(error: ValidationError, values: Any) -> tuple[Place, ErrorDetails]:
    """The first problem and its place in the values. If a value may have several types, pydantic reports a problem for
    each; the innermost is that of the type that fits best."""
    problems = [(_place(item["loc"], item["type"] == "missing", values), item) for item in error.errors()]
    first = problems[0][0]
    same = [problem for problem in problems if problem[0][: len(first)] == first]
    return max(same, key=lambda problem: (len(problem[0]), not problem[1]["type"].endswith("_type")))


def message(problem: ErrorDetails) -> str:
    """The message as the end of a sentence: pydantic's own begin with a capital letter."""
    text = " ".join(problem["msg"].removeprefix("Value error, ").split())
    return text if problem["type"] == "value_error" else text[:1].lower() + text[1:]


def _place(loc: Iterable[int | str], missing: bool, values: Any) -> Place:
    """A location without what pydantic adds to it: types it has tried, and positions in pairs."""
    loc, node, place = tuple(loc), values, list[int | str]()
    for part in loc:
        key: Any = part
        if isinstance(node, dict) and part not in node and str(part).lstrip("-").isdecimal():
            key = int(part)
        if (isinstance(node, dict) and key in node) or (isinstance(node, list) and key in range(len(node))):
            node = node[key]
            place.append(part)
    return (*place, loc[-1]) if missing and isinstance(loc[-1], str) else tuple(place)
