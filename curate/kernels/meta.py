"""Fields of `meta`, the JSON object of a source's other fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

META = "meta."
"""Prefix of a name that stands for a field of `meta`, not for a column."""


def fields_of(meta: str | None) -> Mapping[str, Any]:
    """The fields of a row's `meta`; none if it is not a JSON object."""
    try:
        fields = json.loads(meta) if meta else {}
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def field_of(meta: str | None, name: str) -> Any:
    """The value of `meta.<field>` for a row's `meta`; None if the row has no such field."""
    return field_at(fields_of(meta), name.removeprefix(META))


def field_at(fields: Mapping[str, Any], path: str) -> Any:
    """The field of this name, or at this path of dots through nested objects; None if there is no such field."""
    if path in fields:
        return fields[path]
    head, dot, rest = path.partition(".")
    inner = fields.get(head)
    return field_at(inner, rest) if dot and isinstance(inner, dict) else None
