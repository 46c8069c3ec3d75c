"""What goes with a packed sample besides its bytes: columns of the index, and the members .txt and .json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

META = "meta."
"""Prefix of a carried value that is a field of the pool's `meta` rather than a column."""


def carry_mapping(carry: Mapping[str, str] | list[str]) -> dict[str, str]:
    """Name in the index -> column or `meta.<field>`; a list keeps the columns' own names."""
    return dict(carry) if isinstance(carry, Mapping) else {name.removeprefix(META): name for name in carry}


def carried_values(row: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, Any]:
    """Values of a row's carried columns. Fields of `meta` become strings (JSON where they are none), since the same
    field of another sample may be of another type; a dot leads into nested objects."""
    meta = _meta(row) if any(source.startswith(META) for source in sources.values()) else {}
    return {
        name: _text(_field(meta, source[len(META) :])) if source.startswith(META) else row[source]
        for name, source in sources.items()
    }


def _meta(row: Mapping[str, Any]) -> dict[str, Any]:
    value = json.loads(row.get("meta") or "{}")
    return value if isinstance(value, dict) else {}


def _field(fields: Mapping[str, Any], path: str) -> Any:
    if path in fields:
        return fields[path]
    head, dot, rest = path.partition(".")
    inner = fields.get(head)
    return _field(inner, rest) if dot and isinstance(inner, dict) else None


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def describe(row: Mapping[str, Any], picture: Mapping[str, Any], carried: Mapping[str, Any]) -> bytes:
    """The .json member. `picture` says what lies in the tar; where that is not what the pool holds (resized), the
    pool's values follow as original_width, original_height, original_format and original_sha256."""
    value: dict[str, Any] = {name: row.get(name) for name in ("key", "item", "copy", "source_id", "url")}
    value |= picture
    if picture["sha256"] != row.get("sha256"):
        value |= {f"original_{name}": row.get(name) for name in ("width", "height", "format", "sha256")}
    value |= {"meta": _meta(row)} | {name: _plain(item) for name, item in carried.items() if name not in value}
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _plain(value: Any) -> Any:
    """JSON-able. Bytes (embeddings) are left to the index and null here; NaN is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, datetime | date):
        return value.isoformat()
    return None if isinstance(value, bytes) else value
