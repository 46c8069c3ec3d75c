"""Fields of `meta`, the JSON object of a source's other fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def field_at(fields: Mapping[str, Any], path: str) -> Any:
    """The field of this name, or at this path of dots through nested objects; None if there is no such field."""
    if path in fields:
        return fields[path]
    head, dot, rest = path.partition(".")
    inner = fields.get(head)
    return field_at(inner, rest) if dot and isinstance(inner, dict) else None
