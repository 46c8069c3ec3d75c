"""The pages of the reference, made from the code: ops, sections of a training recipe, commands."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, get_args, get_origin

import pyarrow as pa
from pydantic import BaseModel

from curate.api import Op, resolve
from curate.api import ops as all_ops
from curate.core.contracts import Stage, kind_of
from curate.core.recipe.catalog import type_name
from distill.recipe import Recipe

BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def pages() -> dict[str, str]:
    """Markdown by path, in the order of the site's menu."""
    families = defaultdict(list)
    for about in all_ops():
        families[about.name.partition(".")[0]].append(about)
    return {
        **{f"reference/ops/{family}.md": ops(family, members) for family, members in sorted(families.items())},
        "reference/training-recipe.md": training_recipe(),
        "reference/curate.md": commands("curate", "curate.cli"),
        "reference/curate-service.md": commands("curate service", "curate.service.commands"),
        "reference/distill.md": commands("distill", "distill.cli"),
    }


def ops(family: str, members: Sequence[Op]) -> str:
    """The page of all ops with one prefix."""
    rows = [(f"[{about.name}](#{anchor(about.name)})", about.contract, about.summary) for about in members]
    return "\n".join([f"# Ops: {family}\n", table(("op", "contract", "summary"), rows), *map(op, members)])


def op(about: Op) -> str:
    """The section of one op: what it does, its parameters and ports, the columns it reads and writes."""
    cls = resolve(about.name)
    lines = [f"## {about.name}\n", f"{about.contract}, version {about.version}.\n", f"{about.doc}\n"]
    rows = [
        (f"`{part.name}`", code(part.type), code(part.default), marked(part.kind, part.description))
        for part in about.parameters
        if part.kind != "input"
    ]
    lines.append(table(("parameter", "type", "default", "description"), rows))
    rows = [
        (f"`{port}`", f"`{kind}`", "no" if port in cls.optional_ports else "yes") for port, kind in cls.ports.items()
    ]
    lines.append(table(("port", "artifact", "needed"), rows))
    return "\n".join([*lines, *columns(cls, about.contract)])


def columns(cls: type[Stage], contract: str) -> Iterator[str]:
    """The columns it reads and writes with default parameters; a required integer is taken as 1. The null type stands
    for one that only a loaded model knows."""
    required = {name: 1 for name, info in cls.model_fields.items() if info.is_required() and info.annotation is int}
    stage: Any = cls.model_construct(**required)
    try:
        if reads := ", ".join(f"`{name}`" for name in stage.reads()) if hasattr(stage, "reads") else "":
            yield f"Reads by default: {reads}.\n"
    except Exception:  # noqa: BLE001 - a stage without its required parameters may fail in any way
        yield "Reads the columns that its parameters name.\n"
    if kind := getattr(cls, "kind", ""):
        yield f"Writes the artifact `{kind}`.\n"
    if contract in ("Map", "AsyncMap"):
        try:
            fields = list(stage.schema())
        except Exception:  # noqa: BLE001 - as above
            yield "Writes the columns that its parameters name.\n"
            return
        rows = []
        for field in fields:
            notes = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
            kind_of_value = "set by the model" if pa.types.is_null(field.type) else code(str(field.type))
            rows.append((f"`{field.name}`", kind_of_value, "; ".join(f"{k}: {v}" for k, v in notes.items())))
        yield table(("column written", "type", "notes"), rows)


def training_recipe() -> str:
    """The page of every section of a training recipe."""
    lines = [
        "# Training recipe\n",
        "The recipe of `distill train`. Values marked *Runtime* change speed or place, never the result.\n",
    ]
    for place, section in sections(Recipe, ""):
        rows = []
        comments = attribute_docs(section)
        for name, info in section.model_fields.items():
            value = info.get_default(call_default_factory=True, validated_data={})
            plain = json.dumps(value.model_dump() if isinstance(value, BaseModel) else value, default=str)
            kind_of_value, inner = code(type_name(info.annotation)), models(info.annotation)
            for model in inner:
                shown = type_name(info.annotation).replace(model.__name__, "section")
                kind_of_value = f"[{shown}](#{anchor(join(place, name))})"
            limits = (f" {sign} {limit:g}" for sign, limit in bounds(info.annotation, info.metadata) if limit < 1e6)
            default = "required" if info.is_required() else "" if inner and len(plain) > 30 else code(plain)
            said = marked(kind_of(info), comments.get(name, ""))
            rows.append((f"`{name}`", kind_of_value + ",".join(limits), default, said))
        lines += [f"## {place or 'recipe'}\n", f"{doc(section)}\n"]
        lines.append(table(("value", "type", "default", "description"), rows))
    return "\n".join(lines)


def sections(section: type[BaseModel], place: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every (place in the recipe, model), depth first."""
    yield place, section
    for name, info in section.model_fields.items():
        for model in models(info.annotation):
            yield from sections(model, join(place, name))


def join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def anchor(place: str) -> str:
    """The anchor of a heading."""
    return place.replace(".", "")


def models(annotation: Any) -> list[type[BaseModel]]:
    """The sections in an annotation such as `list[Section] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models(part)] if get_origin(annotation) else []


def bounds(annotation: Any, metadata: Sequence[Any]) -> list[tuple[str, Any]]:
    """The limits of a number, or of the numbers in a list, a mapping or an optional value."""
    found = [
        (sign, getattr(limit, name))
        for mark in metadata
        for limit in (mark, *getattr(mark, "metadata", ()))
        for name, sign in BOUNDS.items()
        if hasattr(limit, name)
    ]
    if found:
        return found
    inner = ((part, getattr(part, "__metadata__", ())) for part in get_args(annotation))
    return next((limits for part, marks in inner if (limits := bounds(part, marks))), [])


def attribute_docs(section: type) -> dict[str, str]:
    """The strings below the fields of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def doc(cls: type) -> str:
    return inspect.cleandoc(cls.__dict__.get("__doc__") or "")


def commands(program: str, module: str) -> str:
    """The help of every command, as typer writes it, with whole sentences in its lists of commands."""
    command = [sys.executable, "-m", "typer", module, "utils", "docs", "--name", program]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    about = dict(re.findall(r"^#+ `(.+)`\n\n(.+)$", text, re.MULTILINE))
    lines, path = [], ""
    for line in text.splitlines():
        if heading := re.match(r"#+ `(.+)`", line):
            path = heading[1]
        item = re.match(r"\* `(\S+)`: ", line)
        lines.append(f"{item[0]}{about[f'{path} {item[1]}']}" if item and f"{path} {item[1]}" in about else line)
    return "\n".join(lines)


def marked(kind: str, text: str) -> str:
    return text if kind == "semantic" else f"*{kind.capitalize()}.* {text}"


def code(text: str) -> str:
    return f"`{text}`" if text not in ("", "required") else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table without its empty columns; an empty string if there are no rows."""
    used = [number for number in range(len(head)) if any(row[number] for row in rows)]
    lines = [[head[number] for number in used], ["---"] * len(used)]
    lines += [[escaped(row[number]) for number in used] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) if rows else ""


def escaped(text: str) -> str:
    """The text as a table cell: one line, with bars and tags escaped outside code."""
    parts = " ".join(text.split()).split("`")
    return "`".join(p if n % 2 else p.replace("|", r"\|").replace("<", "&lt;") for n, p in enumerate(parts))
