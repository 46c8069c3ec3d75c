"""Recipe files: YAML with the line of every key, `--set` overrides, and problems as one line.

Recipes of stages (`curate run`) and of training (`distill train`) are read here. Messages about YAML and about `--set`
of stages leave the value out, because it may be a secret.
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
MAX_REPEATED = 10_000
"""Maximum number of values that aliases repeat: nested aliases repeat exponentially many."""
MAX_DEPTH = 40
"""Maximum number of mappings and lists around a value: OmegaConf exceeds Python's recursion limit at 100."""


class RecipeLoader(yaml.SafeLoader):
    """Reads `1e3` as a number, as YAML 1.2 does."""


RecipeLoader.add_implicit_resolver(
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
            raise RecipeError(f"cannot read {file or path} ({error}); give a recipe's YAML file") from None
        return cls.parse(text, file or str(path))

    @classmethod
    def parse(cls, text: str, file: str) -> Self:
        document = cls(None, file)
        try:
            document._read(text)
            return document
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f":{mark.line + 1}" if mark else ""
            raise RecipeError(f"{file}{line}: not YAML ({_problem(error)}); fix the line") from None

    def _read(self, text: str) -> None:
        """Set values and lines. Raises RecipeError, YAMLError or RecursionError."""
        lines = _Lines(self.file)
        parser = RecipeLoader(text)
        node = parser.get_single_node()
        lines.add(node)
        self.lines = lines.lines
        self.values = None if node is None else _constructed(parser, node)

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


def parse_override(override: str, form: str = "name=value", *, secret: bool = True) -> tuple[str, str, Any]:
    """`name=YAML` -> the name, the text and the value.

    secret: the text may be a secret, so messages leave it out, and a name may contain only letters, digits, `_`, `-`
    and dots. Otherwise any text before `=` is a name, since mappings may have any keys.
    """
    name, equals, text = override.partition("=")
    given = "" if secret else f" {_shortened(override)}"
    if not equals or not re.fullmatch(r"[\w.-]+" if secret else r".+", name):
        raise RecipeError(f"--set{given}: expected {form}")
    try:
        document = Document(None, f"--set {name}")
        document._read(text)
        return name, text, document.values
    except (yaml.YAMLError, RecursionError) as error:
        raise RecipeError(f"--set{given or f' {name}'}: the value is not YAML ({_problem(error)}); quote it") from None


@dataclass
class _Lines:
    """Collects the line of every key. An alias is the node that it repeats."""

    file: str
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)
    parents: set[int] = field(default_factory=set)
    """Identities of the nodes that contain the current one."""
    seen: set[int] = field(default_factory=set)
    repeated: int = 0

    def add(self, node: yaml.Node | None, path: tuple[str, ...] = ()) -> None:
        """Raises RecipeError for a key that is set twice (YAML would silently keep the last value), and for a value
        that contains itself, repeats too many others or is nested too deeply."""
        self._check(node, path)
        self.parents.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self.lines[*path, str(number)] = item.start_mark.line + 1
                self.add(item, (*path, str(number)))
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):  # the constructors reject any other key
                    self.add(value, self._add_key(key, path))
        self.parents.remove(id(node))

    def _check(self, node: yaml.Node | None, path: tuple[str, ...]) -> None:
        place = f"{self.file}:{node.start_mark.line + 1}" if node else self.file
        if id(node) in self.parents:
            raise RecipeError(f"{place}: the value contains an alias of itself; write the value out")
        if len(path) > MAX_DEPTH:
            raise RecipeError(f"{place}: nested more than {MAX_DEPTH} levels deep; nest less")
        self.repeated += id(node) in self.seen
        self.seen.add(id(node))
        if self.repeated > MAX_REPEATED:
            raise RecipeError(f"{self.file}: aliases repeat more than {MAX_REPEATED} values; repeat fewer")

    def _add_key(self, key: yaml.ScalarNode, path: tuple[str, ...]) -> tuple[str, ...]:
        place, line = (*path, key.value), key.start_mark.line + 1
        if place in self.lines and key.value != "<<":
            name = ".".join(place)
            raise RecipeError(f"{self.file}:{line}: {name} is set twice (first in line {self.lines[place]})")
        self.lines[place] = line
        return place


def _constructed(parser: RecipeLoader, node: yaml.Node) -> Any:
    """The node's values. A date such as 2024-99-99, or a tag that does not fit, makes its constructors raise others."""
    try:
        return parser.construct_document(node)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise yaml.YAMLError("a value does not fit its type") from None


def _shortened(text: str) -> str:
    """One line of at most 100 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:99]}…"


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
    if problem["type"] == "literal_error" and isinstance(problem["input"], bool):
        text += "; quote it, since YAML reads no, off, yes and on as booleans"
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
