"""`text.filter`: rejects texts that are missing, too short or too long, as rows or as items (sentences)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from curate.core.contracts import Filter, Table
from curate.core.errors import CurateError
from curate.text.columns import plain_texts


class TextFilter(Filter):
    """Reject texts by their length.

    With `items`, each text of a list is judged separately. Rejects: missing_caption (null), caption_too_short,
    caption_too_long, caption_too_few_words.
    """

    op: ClassVar[str] = "text.filter"

    column: str = Field("text", description="Column of texts, one per row, or with `items` a list per row.")
    items: bool = Field(False, description="Whether to judge the items of a list column instead of rows.")
    min_chars: int = Field(1, ge=0, description="Characters below which a text is caption_too_short.")
    max_chars: int | None = Field(
        None, ge=1, description="Characters above which a text is caption_too_long; null for no limit."
    )
    min_words: int = Field(0, ge=0, description="Words below which a text is caption_too_few_words.")
    missing: Literal["keep", "reject"] = Field("reject", description="What to do with a row without a text.")

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def places(self) -> str | None:
        return self.column if self.items else None

    def keep(self, table: Table) -> pa.Array:
        """Raises CurateError if `items` does not fit the column's type."""
        column = table.column(self.column)
        listed = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
        if listed != self.items:
            hint = "a list per row; set `items: true`" if listed else "one value per row; leave `items` out"
            raise CurateError(f"{self.op}.items: {self.column!r} is {column.type}, {hint}")
        if not listed:
            return self._reasons(plain_texts(self.op, self.column, column))
        lists = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        texts = plain_texts(self.op, self.column, pa.chunked_array([lists.flatten()]))
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(offsets, self._reasons(texts), mask=lists.is_null())

    def _reasons(self, texts: pa.Array) -> pa.Array:
        """Reason (n,) for each text (n,), by the first rule that it breaks; null keeps it."""
        reasons = pa.nulls(len(texts), pa.string())
        if self.min_words:
            bare = pc.utf8_trim_whitespace(texts)
            words = pc.if_else(pc.equal(bare, ""), 0, pc.list_value_length(pc.utf8_split_whitespace(bare)))
            reasons = _where(pc.less(words, self.min_words), "caption_too_few_words", reasons)
        chars = pc.utf8_length(texts)
        if self.max_chars is not None:
            reasons = _where(pc.greater(chars, self.max_chars), "caption_too_long", reasons)
        reasons = _where(pc.less(chars, self.min_chars), "caption_too_short", reasons)
        return _where(texts.is_null(), "missing_caption" if self.missing == "reject" else None, reasons)


def _where(broken: pa.Array, reason: str | None, others: pa.Array) -> pa.Array:
    """`reason` where a rule is broken, `others` elsewhere; null breaks no rule."""
    return pc.if_else(pc.fill_null(broken, False), pa.scalar(reason, pa.string()), others)
