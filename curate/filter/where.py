"""`filter.where`: keeps rows, or items of rows, for which an SQL expression over their columns is true."""

from __future__ import annotations

import difflib
import warnings
from typing import ClassVar

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from curate.core.contracts import Filter, Table
from curate.core.errors import CurateError
from curate.core.items import family_of, per_item
from curate.core.ledger import RESERVED
from curate.filter.expressions import FUNCTIONS, Expression, parse
from curate.filter.flat import Flat, flattened
from curate.kernels.meta import META, column_of

# The expression's parameter and the contract's method are both called `keep`, of which pydantic warns; see the end.
warnings.filterwarnings("ignore", 'Field name "keep" in "Where"')


class Where(Filter):
    """Keep rows for which an SQL expression is true.

    Rejects: `reason` if it is false; `reason` + _null if a column in it is null, or the result is.
    """

    op: ClassVar[str] = "filter.where"

    keep: str = Field(  # type: ignore[assignment]
        max_length=10_000,
        description="SQL expression over columns: least(width, height) >= 256 and aspect < 3. meta.FIELD is a field of "
        "the source, as text: meta.license in ('cc0', 'cc-by'). It may use operators, case, in, between, like, is null "
        f"and the functions {', '.join(FUNCTIONS)}. Integers are computed in 64 bits; a value that cannot be cast is "
        "null; NaN is greater than every number.",
    )
    reason: str = Field(
        pattern="^[a-z][a-z0-9_]*$", description="Reject reason of rows for which it is false: too_small."
    )
    keep_null: bool = Field(
        False,
        description="Whether to keep a row if any column of the expression is null, regardless of the others; "
        "otherwise its reason is `reason` + _null. `is null` and coalesce therefore apply to values that the "
        "expression computes, not to columns.",
    )
    items: str | None = Field(
        None,
        description="Column with a value per item (sentences): judge its items instead of rows. Columns with a value "
        "per row apply to each item of the row.",
    )

    @field_validator("keep")
    @classmethod
    def _row_wise(cls, sql: str) -> str:
        parse(sql)
        return sql

    @field_validator("reason")
    @classmethod
    def _of_the_recipe(cls, reason: str) -> str:
        if reason in RESERVED:
            raise ValueError(f"{reason!r} is reserved for the engine; choose another reason, such as too_small")
        return reason

    @property
    def expression(self) -> Expression:
        return parse(self.__dict__["keep"])

    def reads(self) -> tuple[str, ...]:
        names = [*self.expression.columns, *([self.items] if self.items else [])]
        held = ["meta" if name.startswith(META) else name for name in names]
        return tuple(name for name in dict.fromkeys(held) if name != "key")

    def places(self) -> str | None:
        return self.items

    def check_columns(self, columns: pa.Schema) -> None:
        """Raises CurateError if the expression does not fit columns of these types (pa.null(): not known yet)."""
        fields = {"key": pa.field("key", pa.string())} | {field.name: field for field in columns}
        if "meta" in fields:
            fields |= {name: pa.field(name, pa.string()) for name in self._fields}
        self._check_names(fields)
        self._check_items(fields)
        used = [fields[name] for name in self.expression.columns]
        kinds = [_of_item(field) if self.items and per_item(field) else field.type for field in used]
        for field, kind in zip(used, kinds, strict=True):
            if pa.types.is_fixed_size_binary(kind):
                raise CurateError(f"keep: {field.name!r} holds {kind}, a vector; name a column of numbers or texts")
        if not any(pa.types.is_null(kind) for kind in kinds):
            empty = {field.name: pa.array([], kind) for field, kind in zip(used, kinds, strict=True)}
            self._judged(pa.table(empty))

    def _check_names(self, fields: dict[str, pa.Field]) -> None:
        for parameter, names in {"keep": self.expression.columns, "items": (self.items,)}.items():
            for name in names:
                if name is not None and name not in fields:
                    near = difflib.get_close_matches(name, list(fields), n=1)
                    hint = f"did you mean {near[0]!r}?" if near else f"the columns are {', '.join(fields)}"
                    raise CurateError(f"{parameter}: the column {name!r} is missing; {hint}")

    def _check_items(self, fields: dict[str, pa.Field]) -> None:
        listed = [name for name in self.expression.columns if per_item(fields[name])]
        if self.items is None:
            if listed:
                root = family_of(listed[0], fields)  # a plain column of texts: one item per row
                judged = root if root in fields and per_item(fields[root]) else listed[0]
                text = f"{listed[0]!r} has a value per item; set `items: {judged}` to judge items"
                raise CurateError(f"keep: {text}, or use a column with a value per row")
            return
        if not per_item(fields[self.items]):
            raise CurateError(f"items: {self.items!r} has a value per row; name a column such as sentences")
        if not listed:
            raise CurateError("items: the expression names no column with a value per item; leave `items` out")
        family = family_of(self.items, fields)
        for name in listed:
            if family_of(name, fields) != family:
                other = f"describes items of {family_of(name, fields)!r}, and {self.items!r} of {family!r}"
                raise CurateError(f"keep: {name!r} {other}; use a filter for each")

    @property
    def _fields(self) -> list[str]:
        """Fields of `meta` in the expression."""
        return [name for name in self.expression.columns if name.startswith(META)]

    def _keep(self, table: Table) -> pa.Array:
        for name in self._fields:
            table = table.append_column(name, column_of(table.column("meta"), name))
        if self.items is None:
            return self._reasons(self._judged(table.select(self.expression.columns)))
        flat = flattened(table, {*self.expression.columns, self.items}, self.items)
        return flat.nested(self._reasons(self._judged(flat.table.select(self.expression.columns)), flat))

    def _judged(self, table: Table) -> pl.Series:
        try:
            return self.expression.judge(pl.from_arrow(table))  # type: ignore[arg-type]  # a table is a DataFrame
        except ValueError as error:
            raise CurateError(f"keep: {error}") from None

    def _reasons(self, kept: pl.Series, flat: Flat | None = None) -> pa.Array:
        """True, False or null for each row -> a reason or null (n,)."""
        if self.keep_null:
            kept = kept.fill_null(True)
        if flat is not None:
            kept = kept | ~pl.Series(flat.exists)
        if kept.null_count() == 0 and kept.all():
            return pa.nulls(len(kept), pa.string())
        mask = kept.to_arrow()
        reasons = pc.if_else(mask, pa.scalar(None, pa.string()), self.reason)
        if mask.null_count:
            reasons = pc.if_else(pc.is_null(mask), f"{self.reason}_null", reasons)
        return reasons


def _of_item(field: pa.Field) -> pa.DataType:
    return field.type if pa.types.is_null(field.type) else field.type.value_type


# pydantic reads parameters from a stage's `__dict__`. A property of the class takes precedence, so that `stage.keep` is
# the method; only this file needs the parameter.
Where.keep = property(lambda stage: stage._keep)  # type: ignore[assignment]
