"""`caption.choose`: the first of several texts of a row that passes its check."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field, model_validator

from curate.caption.checks.words import is_blank
from curate.core.contracts import Batch, Map
from curate.core.errors import CurateError


class Choose(Map):
    """Choose for each row the first text that passes its check, and record its column.

    A text passes if it is not null or blank and its check is null. Both columns are null if no text passes. In
    `checks`, null stands for a text that needs none, such as the original to fall back on. Counters: chosen_COLUMN, and
    chosen_none.
    """

    op: ClassVar[str] = "caption.choose"
    version: ClassVar[int] = 2
    batch_rows: ClassVar[int] = 8192

    order: tuple[str, ...] = Field(
        ("repaired", "generated"), min_length=1, description="Columns of texts, the best first."
    )
    checks: dict[str, str | None] = Field(
        default_factory=dict,
        description="Column of texts -> column of reasons against it, null for texts that need no check. By default "
        "COLUMN_check.",
    )
    output: str = Field(
        "chosen", pattern=r"^[a-z][a-z0-9_]*$", description="Name of the column of texts; OUTPUT_from names the source."
    )

    @model_validator(mode="after")
    def _known(self) -> Choose:
        for name in self.order:
            if self.order.count(name) > 1:
                raise ValueError(f"order: {name!r} is listed twice; remove one")
        for name in self.checks:
            if name not in self.order:
                raise ValueError(f"checks: {name!r} is not in `order`, which has {', '.join(self.order)}")
        return self

    def _checks(self) -> dict[str, str | None]:
        """Column of texts -> its check."""
        return {name: self.checks.get(name, f"{name}_check") for name in self.order}

    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.order, *filter(None, self._checks().values())]))

    def use_of(self, column: str) -> str:
        name = column.removesuffix("_check")
        return f"the check of {name!r}; `checks: {{{name}: null}}` if it needs none" if name in self.order else ""

    def schema(self) -> pa.Schema:
        of = f"first text that passes its check, of {', '.join(self.order)}"
        source = {"of": f"column of `{self.output}`; null if no text passes"}
        return pa.schema(
            [
                pa.field(self.output, pa.string(), metadata={"of": of}),
                pa.field(f"{self.output}_from", pa.string(), metadata=source),
            ]
        )

    def process(self, batch: Batch) -> dict[str, Any]:
        texts: list[str | None] = [None] * len(batch)
        sources: list[str | None] = [None] * len(batch)
        for name, check in self._checks().items():
            kind = batch.table.column(name).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
                raise CurateError(f"{self.op}.order: {name!r} holds {kind}, expected one text per row")
            reasons = batch.column(check) if check else [None] * len(batch)
            for row, (text, reason) in enumerate(zip(batch.column(name), reasons, strict=True)):
                if sources[row] is None and reason is None and text is not None and not is_blank(text):
                    texts[row], sources[row] = text, name
        for source in sources:
            batch.counters[f"chosen_{source or 'none'}"] += 1
        return {self.output: pa.array(texts, pa.string()), f"{self.output}_from": pa.array(sources, pa.string())}
