"""Recipes of stages: YAML files of `vars` and named `stages`, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from curate.core.contracts import Map, Stage
from curate.core.errors import CurateError, RecipeError, did_you_mean
from curate.core.recipe import registry
from curate.core.recipe.document import Document, parse_override
from curate.core.recipe.pipeline import RESERVED, Pipeline, build_stage

ENVIRONMENT = re.compile(r"\$\{[^{}]*\boc\.env\b")
"""OmegaConf's resolver of environment variables."""
NO_ENVIRONMENT = (
    "${oc.env:…} would store the variable's value in the workspace; give env:NAME to a parameter of type Secret, "
    "or the value by --set if it is not a secret"
)
TOP = ("vars", "workspace", "stages", "description")


def load(path: str | Path, overrides: Iterable[str] = ()) -> Pipeline:
    """Read, override (`name=value` for a var, `stage.parameter=value` for a parameter, `stage={op: …}` for a stage),
    build and check a recipe."""
    return _build(Document.read(path), overrides)


def parse(text: str, overrides: Iterable[str] = (), file: str = "recipe") -> Pipeline:
    return _build(Document.parse(text, file), overrides)


def _build(document: Document, overrides: Iterable[str]) -> Pipeline:
    override(document, overrides)
    return build(document, resolve(document))


def override(document: Document, overrides: Iterable[str]) -> None:
    """Check the recipe's sections and apply the overrides."""
    raw, file = document.values, document.file
    if isinstance(raw, dict) and not isinstance(raw.setdefault("vars", {}) or {}, dict):
        found = type(raw["vars"]).__name__  # not its value: it may hold a secret
        raise RecipeError(f"{file}: vars: expected a mapping, found {found}; write `name: value` lines below it")
    if not isinstance(raw, dict) or not isinstance(raw.get("stages"), dict) or not raw["stages"]:
        raise RecipeError(f"{file}: a recipe needs `stages:` with at least one named stage")
    for name in raw:
        if name not in TOP:
            raise RecipeError(f"{document.line((name,))}: {name}: unknown section; a recipe has {', '.join(TOP)}")
    _check_environment(document, raw, ())
    for one in overrides:
        _override(document, one)


def build(document: Document, resolved: dict[str, Any]) -> Pipeline:
    """Build and check the stages of a resolved recipe."""
    pipeline, problems = attempted(document, resolved)
    for problem in problems:
        raise problem
    return pipeline


def attempted(
    document: Document, resolved: dict[str, Any], leave_out: Iterable[str] = ()
) -> tuple[Pipeline, list[CurateError]]:
    """The pipeline of a resolved recipe, and everything that is wrong with it, apart from stages to leave out."""
    pipeline, unbuilt, problems = Pipeline(), list(leave_out), list[CurateError]()
    pipeline.source = resolved
    for name, values in resolved["stages"].items():
        try:
            if name not in unbuilt:
                _add(pipeline, str(name), values, document)
        except CurateError as problem:
            unbuilt.append(name)
            problems.append(problem)
    return pipeline, [*problems, *pipeline.problems([str(name) for name in unbuilt])]


def _check_environment(document: Document, value: Any, path: tuple[str, ...]) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _check_environment(document, item, (*path, str(name)))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_environment(document, item, (*path, str(number)))
    elif isinstance(value, str) and ENVIRONMENT.search(value):
        raise RecipeError(f"{document.line(path)}: {'.'.join(path[1:] or path)}: {NO_ENVIRONMENT}")


def _override(document: Document, given: str) -> None:
    name, text, value = parse_override(given, "name=value or stage.parameter=value")
    if ENVIRONMENT.search(text):
        raise RecipeError(f"--set {name}: {NO_ENVIRONMENT}")
    if not document.values["vars"]:
        document.values["vars"] = {}
    variables, stages = document.values["vars"], document.values["stages"]
    stage, *parameter = name.split(".")
    if not parameter and name in variables:
        variables[name] = value
    elif parameter and isinstance(stages.get(stage), dict):
        document.override(name, ("stages", stage, *parameter), value)
    elif not parameter and isinstance(value, dict) and "op" in value:
        stages[stage] = value
    else:
        known = [*variables, *(f"{s}.…" for s in stages)]
        hint = did_you_mean(name, known, f"{document.file} has {', '.join(known)}")
        raise RecipeError(f"--set {name}: no such variable or stage; {hint}")


def resolve(document: Document) -> dict[str, Any]:
    """The recipe, after `override`, with the value of every `${variable}`."""
    variables, stages = document.values["vars"] or {}, document.values["stages"]
    try:
        config = OmegaConf.create({**variables, "stages": stages, "workspace": document.values.get("workspace")})
        resolved = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        text = str(error).splitlines()[0]
        name = str(getattr(error, "full_key", None) or "")
        place = tuple(name.replace("[", ".").replace("]", "").split("."))
        line = document.line(place, ("vars", place[0]))
        raise RecipeError(f"{line}: {name.removeprefix('stages.')}: {text}; define it under `vars`") from None
    assert isinstance(resolved, dict)
    given = resolved["stages"]
    for name in [name for name, values in given.items() if isinstance(values, dict) and "switch" in values]:
        before = given[name].get("from")
        given[name] = _chosen(str(name), given[name], document)
        if given[name] is None:
            del given[name]
            _passed_through(given, name, before)
    return {"vars": variables, "stages": given, "workspace": resolved["workspace"]}


def _passed_through(given: dict[str, Any], name: str, before: Any) -> None:
    """Stages that read a stage which was left out read what it would have read."""
    above = before if isinstance(before, list) else [before]
    for values in given.values():
        inputs = values.get("from") if isinstance(values, dict) else None
        if before is not None and name in (inputs if isinstance(inputs, list) else [inputs]):
            listed = inputs if isinstance(inputs, list) else [inputs]
            kept = [one for each in listed for one in (above if each == name else [each])]
            kept = [one for place, one in enumerate(kept) if one not in kept[:place]]
            values["from"] = kept[0] if len(kept) == 1 else kept


def _chosen(name: str, values: dict[str, Any], document: Document) -> dict[str, Any] | None:
    """Values of a stage with `switch`: those of one of its `cases`, together with the other keys. None if
    the case is null: the recipe then has no such stage, and those that read it read what it reads."""
    switch, cases = values["switch"], values.get("cases")
    line = document.line(("stages", name, "cases"), ("stages", name))
    if not isinstance(cases, dict) or not all(case is None or isinstance(case, dict) for case in cases.values()):
        raise RecipeError(f"{line}: {name}.cases: expected a mapping from values of `switch` to stages, or to null")
    if isinstance(switch, (dict, list)) or switch not in cases:
        known = ", ".join(map(str, cases))
        raise RecipeError(f"{line}: {name}.switch: {switch!r} is not one of its cases: {known}; give one of these")
    chosen: dict[str, Any] | None = cases[switch]
    if chosen is None:
        return None
    return chosen | {key: value for key, value in values.items() if key not in ("switch", "cases")}


def _add(pipeline: Pipeline, name: str, values: Any, document: Document) -> None:
    line = document.line(("stages", name))

    def fail(field: str, text: str) -> RecipeError:
        parts = [part for part in field.split(".") if part]
        return RecipeError(f"{document.line(('stages', name, *parts))}: {'.'.join((name, *parts))}: {text}")

    if not isinstance(values, Mapping) or not isinstance(values.get("op"), str):
        raise RecipeError(f"{line}: {name}: a stage needs `op:`; `curate ops` lists them")
    if "." in name:
        raise RecipeError(f"{line}: {name}: a stage's name must not contain a dot; rename it")
    inputs = values.get("from", [])
    inputs = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(inputs, list) or not all(isinstance(item, str) for item in inputs):
        raise fail("from", f"expected the name of a stage, or a list of names, not {inputs!r}")
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
    pipeline.add(name, stage, inputs, place=line, keep_null=keep_null, **ports)


def json_schema() -> dict[str, Any]:
    """JSON Schema of the recipe format, for editors."""
    stages: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for op in registry.names():
        cls: type[Stage] = registry.resolve(op)
        schema = cls.model_json_schema(ref_template="#/$defs/{model}")
        definitions |= schema.pop("$defs", {})
        properties = {"op": {"const": op}, "from": _from_schema(), **schema.get("properties", {})}
        if issubclass(cls, Map):
            properties["keep_null"] = {"type": "boolean", "description": "keep rows without facts, with nulls"}
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
    stages += [_own_schema(), _switch_schema()]
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
    """Schema of a custom stage, named by its class; its parameters are unknown until the class is imported."""
    return {
        "title": "package.module:Class",
        "description": "A custom stage",
        "type": "object",
        "properties": {"op": {"type": "string", "pattern": r"^[\w.]+:\w+$"}, "from": _or_variable(_from_schema())},
        "required": ["op"],
    }


def _switch_schema() -> dict[str, Any]:
    """Schema of a stage that a variable chooses."""
    cases = {"type": "object", "additionalProperties": {"type": ["object", "null"]}}
    return {
        "title": "switch",
        "description": "One of several stages, chosen by a variable; a case of null leaves the stage out",
        "type": "object",
        "properties": {"switch": {"type": "string"}, "cases": cases},
        "required": ["switch", "cases"],
    }


def _from_schema() -> dict[str, Any]:
    name = {"type": "string"}
    return {"anyOf": [name, {"type": "array", "items": name}], "description": "stages whose rows the stage works on"}


def _or_variable(schema: dict[str, Any]) -> dict[str, Any]:
    """A value or a `${variable}`."""
    if "const" in schema:
        return schema
    return {"anyOf": [schema, {"type": "string", "pattern": r"\$\{.+\}"}]}
