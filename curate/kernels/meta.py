"""Fields of `meta`, the JSON object of a source's other fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.errors import CurateError

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


def column_of(meta: pa.ChunkedArray, name: str) -> pa.Array:
    """`field_of` for a column (n,), as text: strings as they are, other values as JSON. Null where the row has none."""
    name = name.removeprefix(META)
    whole = pa.concat_arrays(meta.chunks) if meta.num_chunks else pa.array([], pa.string())
    named = pc.match_substring(whole, json.dumps(name).strip('"').partition(".")[0])
    if not pc.any(named).as_py():
        return pa.nulls(len(whole), pa.string())
    if not (name.isidentifier() and name.isascii()):
        return pa.array([as_text(field_of(text, name)) for text in whole.to_pylist()], pa.string())
    # most are texts in an object without objects and escapes
    found = pc.struct_field(pc.extract_regex(whole, rf'"{name}":\s*"(?P<value>[^"\\]*)"'), "value")
    other = pc.or_(pc.is_null(found), pc.match_substring_regex(whole, r"(?s).\{|\\"))
    other = pc.fill_null(pc.and_(named, other), False)
    if pc.any(other).as_py():
        rest = pl.Series(pl.from_arrow(whole.filter(other))).str.json_path_match(f"$['{name}']").to_list()
        found = pc.replace_with_mask(found, other, pa.array(rest, pa.string()))
    return found


def texts_of(table: pa.Table, label: str) -> pa.Array:
    """Labels (n,) by a column or `meta.FIELD`; null where a row has none, or an empty one. Raises CurateError for a
    column of other values, whose type may be known only now."""
    if label.startswith(META):
        found = column_of(table.column("meta"), label)
    else:
        check_label(label, table.schema.field(label))
        found = pa.concat_arrays(table.column(label).cast(pa.string()).chunks or [pa.array([], pa.string())])
    return pc.if_else(pc.equal(found, ""), pa.scalar(None, pa.string()), found)


def check_label(parameter: str, column: pa.Field) -> None:
    """Raises CurateError unless values of the column can be labels: texts, whole numbers, or true and false."""
    kind = column.type
    plain = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)
    if not any(is_plain(kind) for is_plain in plain):
        raise CurateError(
            f"{parameter}: column {column.name!r} holds {kind}; give a column with a word or whole number per row, or "
            "meta.FIELD"
        )


def as_text(value: Any) -> str | None:
    """A field's value as text, since its type may differ between samples."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
