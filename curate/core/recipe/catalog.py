"""Descriptions of the available stages, as printed by `curate ops`."""

from __future__ import annotations

import inspect
import json
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from curate.core.contracts import kind_of
from curate.core.recipe import registry


@dataclass(frozen=True)
class Parameter:
    """`default` is JSON (for a secret, its reference) or `required`; `kind` is semantic, runtime, secret or input."""

    name: str
    type: str
    default: str
    kind: str
    description: str


@dataclass(frozen=True)
class Op:
    name: str
    contract: str
    version: int
    doc: str
    parameters: tuple[Parameter, ...]

    @property
    def summary(self) -> str:
        """The first line of the doc."""
        return (self.doc.splitlines() or [""])[0]


def ops() -> list[Op]:
    """All ops of the package and of its plugins."""
    return [describe(name) for name in registry.names()]


def describe(name: str) -> Op:
    """An op, by name or as `package.module:Class`. Raises RecipeError if it does not exist."""
    cls = registry.resolve(name)
    parameters = []
    for field, info in cls.model_fields.items():
        value = info.get_default(call_default_factory=True)
        default = "required" if info.is_required() else json.dumps(value, default=str)
        parameters.append(Parameter(field, type_name(info.annotation), default, kind_of(info), info.description or ""))
    for port, artifact in cls.ports.items():
        default = "none" if port in cls.optional_ports else "required"
        about = f"name of the stage that makes the {artifact}"
        parameters.append(Parameter(port, "input", default, "input", about))
    return Op(name, contract_of(cls), cls.version, inspect.cleandoc(cls.__doc__ or ""), tuple(parameters))


def contract_of(cls: type) -> str:
    """Name of the contract that a stage's class implements."""
    return next(base.__name__ for base in cls.__mro__ if base.__module__.startswith("curate.core.contracts."))


def type_name(annotation: Any) -> str:
    """A parameter's type in the notation of recipes: `int | null`, `list[str]`, `random | closest`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return " | ".join(str(value) for value in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(type_name(part) for part in arguments)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(type_name(part) for part in arguments)}]"
    names = {type(None): "null", Ellipsis: "…", Any: "any"}
    return names.get(annotation) or str(annotation.__name__)
