"""Recipes: YAML files of `vars` and named `stages`, read with the place of every line, so that errors can name it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from curate.core.contracts import Stage
from curate.core.errors import RecipeError
from curate.core.recipe import registry
from curate.core.recipe.pipeline import RESERVED, Pipeline, build_stage

ENVIRONMENT = re.compile(r"\$\{[^}]*\boc\.env\b")
"""OmegaConf's resolver of environment variables."""
NO_ENVIRONMENT = (
    "${oc.env:…} would store the variable's value in the workspace; give env:NAME to a parameter of type Secret, "
    "or the value by --set if it is not a secret"
)
TOP = ("vars", "workspace", "stages", "description")
Places = dict[tuple[str, ...], int]


def load(path: str | Path, overrides: Iterable[str] = ()) -> Pipeline:
    """Read, override (`name=value` for a var, `stage.parameter=value` for a parameter), build and check a recipe."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read ({error}); give a recipe's YAML file") from None
    return parse(text, overrides, file=str(path))


def parse(text: str, overrides: Iterable[str] = (), file: str = "recipe") -> Pipeline:
    places: Places = {}
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        raw = _read(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise RecipeError(f"{file}{line}: not YAML ({_problem(error)}); mend the line") from None
    if root is not None:
        _walk(root, (), places, file)
    if isinstance(raw, dict) and not isinstance(raw.setdefault("vars", {}) or {}, dict):
        found = type(raw["vars"]).__name__  # not its value: it may hold a secret
        raise RecipeError(f"{file}: vars: expected a mapping, found {found}; write `name: value` lines below it")
    if not isinstance(raw, dict) or not isinstance(raw.get("stages"), dict) or not raw["stages"]:
        raise RecipeError(f"{file}: a recipe needs `stages:` with at least one named stage")
    for name in raw:
        if name not in TOP:
            raise RecipeError(f"{file}:{places[(str(name),)]}: {name}: no part of a recipe; it has {', '.join(TOP)}")
    _check_environment(raw, (), places, file)
    for override in overrides:
        _override(raw, override, file)
    resolved = _resolve(raw, places, file)
    pipeline = Pipeline()
    pipeline.source = resolved
    for name, values in resolved["stages"].items():
        _add(pipeline, str(name), values, places, file)
    return pipeline.check()


def _walk(node: yaml.Node, path: tuple[str, ...], places: Places, file: str) -> None:
    """Line of every key; a key given twice is an error (YAML alone would take the last)."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            line = key.start_mark.line + 1
            if here in places:
                raise RecipeError(f"{file}:{line}: {'.'.join(here)} is given twice (first in line {places[here]})")
            places[here] = line
            _walk(value, here, places, file)


def _read(text: str) -> Any:
    """YAML -> values. Its constructors raise errors of Python for a date 2024-99-99 or a tag that does not fit."""
    try:
        return yaml.safe_load(text)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise yaml.YAMLError("a value does not fit its type") from None


def _problem(error: yaml.YAMLError) -> str:
    """What YAML says, without the names it repeats: a secret that begins with * or ! reads as one."""
    return re.sub(r"(alias|tag|handle|anchor)\b.* [\"'].*", r"\1", str(getattr(error, "problem", None) or error))


def _check_environment(value: Any, path: tuple[str, ...], places: Places, file: str) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _check_environment(item, (*path, str(name)), places, file)
    elif isinstance(value, list):
        for item in value:
            _check_environment(item, path, places, file)
    elif isinstance(value, str) and ENVIRONMENT.search(value):
        line = next((f":{places[path[:n]]}" for n in range(len(path), 0, -1) if path[:n] in places), "")
        raise RecipeError(f"{file}{line}: {'.'.join(path[1:] or path)}: {NO_ENVIRONMENT}")


def _override(raw: dict[str, Any], override: str, file: str) -> None:
    """Put a `--set` into the recipe as it was read. Messages leave the value out: it may be a secret."""
    name, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"[\w.-]+", name):
        raise RecipeError("--set: expected name=value or stage.parameter=value")
    try:
        parsed = _read(value)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {name}: the value is not YAML ({_problem(error)}); quote it") from None
    if ENVIRONMENT.search(value):
        raise RecipeError(f"--set {name}: {NO_ENVIRONMENT}")
    variables, stages = raw["vars"] or {}, raw["stages"]
    stage, dot, parameter = name.partition(".")
    if not dot and name in variables:
        variables[name] = parsed
    elif dot and isinstance(stages.get(stage), dict):
        stages[stage][parameter] = parsed
    else:
        known = [*variables, *(f"{s}.…" for s in stages)]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"{file} has {', '.join(known)}"
        raise RecipeError(f"--set {name}: no such variable or stage; {hint}")


def _resolve(raw: dict[str, Any], places: Places, file: str) -> dict[str, Any]:
    """The recipe with every `${variable}` put in."""
    variables, stages = raw["vars"] or {}, raw["stages"]
    try:
        config = OmegaConf.create({**variables, "stages": stages, "workspace": raw.get("workspace")})
        resolved = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        text = str(error).splitlines()[0]
        place = str(getattr(error, "full_key", None) or "")
        steps = tuple(place.replace("[", ".").replace("]", "").split("."))
        found = [steps[:n] for n in range(len(steps), 0, -1)] + [("vars", steps[0])]
        line = next((f":{places[step]}" for step in found if step in places), "")
        raise RecipeError(f"{file}{line}: {place.removeprefix('stages.')}: {text}; define it under `vars`") from None
    assert isinstance(resolved, dict)
    return {"vars": variables, "stages": resolved["stages"], "workspace": resolved["workspace"]}


def _add(pipeline: Pipeline, name: str, values: Any, places: Places, file: str) -> None:
    line = places.get(("stages", name), 0)

    def fail(field: str, text: str) -> RecipeError:
        where = places.get(("stages", name, *field.split(".")[:1]), line)
        return RecipeError(f"{file}:{where}: {'.'.join(filter(None, (name, field)))}: {text}")

    if not isinstance(values, Mapping) or not isinstance(values.get("op"), str):
        raise RecipeError(f"{file}:{line}: {name}: a stage needs `op:`; `curate ops` lists them")
    if "." in name:
        raise RecipeError(f"{file}:{line}: {name}: a stage's name has no dot; rename it")
    inputs = values.get("from", [])
    inputs = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(inputs, list) or not all(isinstance(item, str) for item in inputs):
        raise fail("from", f"{inputs!r} is no stage name or list of names")
    reserved = set(RESERVED) - set(registry.resolve_fields(values["op"]))
    rest = {key: value for key, value in values.items() if key not in reserved}
    try:
        stage, ports = build_stage(values["op"], rest, fail)
    except RecipeError as error:
        if str(error).startswith("op: "):
            raise fail("op", str(error).removeprefix("op: ")) from None
        raise
    keep_null = values.get("keep_null", False)
    if "keep_null" in type(stage).model_fields:  # a filter's own parameter
        keep_null = False
    if not isinstance(keep_null, bool):
        raise fail("keep_null", f"expected true or false, not {keep_null!r}")
    pipeline.add(name, stage, inputs, place=f"{file}:{line}", keep_null=keep_null, **ports)


def json_schema() -> dict[str, Any]:
    """JSON Schema of the recipe format, for editors, from the stages' models."""
    stages: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for op in registry.names():
        cls: type[Stage] = registry.resolve(op)
        schema = cls.model_json_schema(ref_template="#/$defs/{model}")
        definitions |= schema.pop("$defs", {})
        properties = {"op": {"const": op}, "from": _from_schema(), **schema.get("properties", {})}
        for port, kind in cls.ports.items():
            properties[port] = {"type": "string", "description": f"stage that makes the {kind}, or pin:NAME"}
        needed = [port for port in cls.ports if port not in cls.optional_ports]
        required = ["op", *schema.get("required", []), *needed]
        text = (cls.__doc__ or "").strip().splitlines()
        stages.append(
            {
                "title": op,
                "description": text[0] if text else op,
                "type": "object",
                "properties": {name: _or_variable(value) for name, value in properties.items()},
                "required": required,
                "additionalProperties": False,
            }
        )
    stages.append(_own_schema())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "curate recipe",
        "type": "object",
        "required": ["stages"],
        "additionalProperties": False,
        "properties": {
            "description": {"type": "string"},
            "vars": {"type": "object"},
            "workspace": {"type": ["string", "null"]},
            "stages": {"type": "object", "additionalProperties": {"oneOf": stages}, "minProperties": 1},
        },
        "$defs": definitions,
    }


def _own_schema() -> dict[str, Any]:
    """A stage of one's own, by its class: what its parameters are is known once it is imported."""
    return {
        "title": "package.module:Class",
        "description": "A stage of one's own",
        "type": "object",
        "properties": {"op": {"type": "string", "pattern": r"^[\w.]+:\w+$"}, "from": _or_variable(_from_schema())},
        "required": ["op"],
    }


def _from_schema() -> dict[str, Any]:
    name = {"type": "string"}
    return {"anyOf": [name, {"type": "array", "items": name}], "description": "stages whose rows it works on"}


def _or_variable(schema: dict[str, Any]) -> dict[str, Any]:
    """A value, or `${variable}` in its place."""
    if "const" in schema:
        return schema
    return {"anyOf": [schema, {"type": "string", "pattern": r"\$\{.+\}"}]}
