"""Values of Arrow tables as Python ones, each on its own: one that Python cannot hold costs no row beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

UNREADABLE = object()
"""A value without a Python form: a string whose bytes are not UTF-8, which Parquet does not rule out."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def python_rows(batch: pa.RecordBatch, unreadable: Any = UNREADABLE) -> list[dict[str, Any]]:
    """Rows of a batch. If a name repeats, the later columns are `name_2`, …"""
    names = unique(batch.schema.names)
    columns = {name: python_values(column, unreadable) for name, column in zip(names, batch.columns, strict=True)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)] if columns else []


def unique(names: Sequence[str]) -> list[str]:
    """Each name once: those that come again get a number."""
    seen = Counter[str]()
    taken = set(names)
    found = []
    for name in names:
        seen[name] += 1
        own = name
        while seen[name] > 1 and (own == name or own in taken):
            own = f"{name}_{seen[name]}"
            seen[name] += own in taken
        taken.add(own)
        found.append(own)
    return found


def python_values(column: pa.Array, unreadable: Any = UNREADABLE) -> list[Any]:
    """As `to_pylist`, but `unreadable` for text that is not UTF-8, ISO 8601 text for times that Python cannot hold
    (nanoseconds, years above 9999; in UTC, if their time zone is not known), and seconds for such durations."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        return [_value(scalar, unreadable) for scalar in column]


def _value(scalar: pa.Scalar, unreadable: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        kind = scalar.type
    if pt.is_struct(kind):
        values = [_value(one, unreadable) for one in scalar.values()]
        return dict(zip(unique([field.name for field in kind]), values, strict=True))
    if pt.is_nested(kind) and hasattr(scalar, "values"):
        return [_value(one, unreadable) for one in scalar.values]
    if pt.is_dictionary(kind) or isinstance(scalar, pa.ExtensionScalar):
        return _value(scalar.value, unreadable)
    if pt.is_duration(kind):
        return scalar.value / _PER_SECOND[kind.unit]
    if pt.is_temporal(kind):
        try:
            text = scalar.cast(pa.string()).as_py()
        except pa.ArrowInvalid:  # an unknown time zone
            return _value(scalar.cast(pa.timestamp(kind.unit, "UTC")), unreadable)
        return str(scalar.value) if text.startswith("<") else text.replace(" ", "T", 1)
    return unreadable
