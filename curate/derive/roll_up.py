"""`derive.roll_up`: a column of children as a column of their parent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from curate.core.contracts import Batch, Map
from curate.core.errors import CurateError
from curate.core.nouns.pools import POOL_SCHEMA

_NUMBERS = ("any", "sum", "mean")
"""Summaries of numbers only."""


class RollUp(Map):
    """Summarise a column of each sample's children, such as frames, in a column of the sample.

    Children that a filter up to the stage `children` has rejected do not count, and neither do nulls, except in `first`
    and `list`. Children are in order of their spans. Without any value, the count and the sum are 0, any is false, a
    list of no children is empty, and others are null.
    """

    op: ClassVar[str] = "derive.roll_up"
    ports: ClassVar[dict[str, str]] = {"children": "children"}

    column: str = Field("key", description="Column of the children; `key` counts all of them.")
    how: Literal["count", "any", "min", "max", "sum", "mean", "first", "list"] = Field(
        description="What to make of the values. any: whether one is true, or not 0."
    )
    into: str = Field(pattern="^[A-Za-z][A-Za-z0-9_]*$", description="Name of the new column.")
    type: Literal["number", "text"] = Field(
        "number", description="Type of the values, for min, max, first and list. Numbers are 64-bit floats."
    )

    def reads(self) -> tuple[str, ...]:
        return (f"children.{self.column}",)

    def check_columns(self, columns: pa.Schema) -> None:
        """Raises CurateError for values of another type, and if `into` is a column of pools."""
        if self.into in POOL_SCHEMA.names:
            raise CurateError(f"into: {self.into!r} is a column of every pool; give the new column another name")
        kind = columns.field(f"children.{self.column}").type.value_type
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        number = number or (pa.types.is_boolean(kind) and self.how in _NUMBERS)
        has = "number" if number else "text" if pa.types.is_string(kind) else ""
        wanted = "number" if self.how in _NUMBERS else self.type
        if has != wanted and self.how != "count" and not pa.types.is_null(kind):
            other = f"set `type: {has}`" if has and wanted == self.type else "set `how: count`"
            raise self._unfit(f"values of type {kind}", f"name a column of {wanted}s, or {other}")

    def _unfit(self, why: str, remedy: str) -> CurateError:
        text = f"column: {self.column!r} does not fit `how: {self.how}`, `type: {self.type}`"
        return CurateError(f"{text} ({why}); {remedy}")

    def schema(self) -> pa.Schema:
        value = pa.float64() if self.type == "number" else pa.string()
        kinds = {"count": pa.int64(), "any": pa.bool_(), "list": pa.list_(value)}
        kinds |= dict.fromkeys(("sum", "mean"), pa.float64())
        return pa.schema([pa.field(self.into, kinds.get(self.how, value))])

    def process(self, batch: Batch) -> dict[str, Any]:
        lists = batch.column(f"children.{self.column}")
        try:
            values = [_SUMMARIES[self.how](children or []) for children in lists]
            return {self.into: pa.array(values, self.schema().field(0).type)}
        except (pa.ArrowInvalid, TypeError) as error:
            raise self._unfit(" ".join(str(error).split()), "change one of them") from None


def _present(summary: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """The summary of the values that are not null; null without any."""

    def of(values: list[Any]) -> Any:
        present = [value for value in values if value is not None]
        return summary(present) if present else None

    return of


_SUMMARIES: dict[str, Callable[[list[Any]], Any]] = {
    "count": lambda values: sum(value is not None for value in values),
    "any": any,
    "min": _present(min),
    "max": _present(max),
    "sum": lambda values: sum(value for value in values if value is not None),
    "mean": _present(lambda values: sum(values) / len(values)),
    "first": lambda values: values[0] if values else None,
    "list": list,
}
