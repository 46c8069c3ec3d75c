"""`caption.mix`: puts several texts of an image side by side, for `pack.webdataset` to write into the dataset.

All texts go into the dataset; which one a training sees is drawn by the reader, by weight (docs/distill.md).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import Field, field_validator

from curate.caption.checks.words import is_blank
from curate.core.contracts import Batch, Map
from curate.core.errors import CurateError

_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_MEMBERS = ("txt", "json")
"""A reader takes these names for members of the tar."""


class Mix(Map):
    """Put the texts of an image side by side, in one column: a struct with a text per kind.

    A column may hold one text per row or a list of texts (hashtags, sentences), which are joined. A text that is null
    or empty is null under its kind; equal texts are kept under each of their kinds. A row without any text is null. All
    items of a list are joined, also those that an item filter has rejected.
    """

    op: ClassVar[str] = "caption.mix"
    batch_rows: ClassVar[int] = 4096

    texts: Annotated[dict[str, str], Field(min_length=1)] = Field(
        description="Kind -> column, as in `{original: caption, short: chosen, tags: hashtags}`. A kind is a name of "
        "letters, digits, _ and -, other than txt and json."
    )
    output: str = Field("texts", description="Name of the new column.")
    separator: str = Field(", ", description="What joins the texts of a list.")

    @field_validator("texts")
    @classmethod
    def _plain_kinds(cls, value: dict[str, str]) -> dict[str, str]:
        for kind in value:
            if not _KIND.fullmatch(kind) or kind in _MEMBERS:
                raise ValueError(
                    f"{kind!r} is not a kind of text; expected letters, digits, _ and -, a letter first, and neither "
                    f"txt nor json, which are members of the tar"
                )
        return value

    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.texts.values()))

    def schema(self) -> pa.Schema:
        kind = pa.struct([pa.field(name, pa.string()) for name in self.texts])
        return pa.schema([pa.field(self.output, kind, metadata={"of": ", ".join(self.reads())})])

    def process(self, batch: Batch) -> dict[str, Any]:
        columns = {name: self._plain(name, batch.table.column(name)) for name in self.reads()}
        rows = zip(*(columns[name] for name in self.texts.values()), strict=True)
        return {self.output: [dict(zip(self.texts, row, strict=True)) if any(row) else None for row in rows]}

    def _plain(self, name: str, column: pa.ChunkedArray) -> list[str | None]:
        """A text per row, null instead of an empty one."""
        listed = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
        kind = column.type.value_type if listed else column.type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
            raise CurateError(
                f"{self.op}.texts: {name!r} holds {column.type}, expected a text or a list of texts per row; give "
                "another column"
            )
        values = column.to_pylist()
        if listed:
            return [self._joined(value or ()) for value in values]
        return [self._joined((value,)) for value in values]

    def _joined(self, texts: Any) -> str | None:
        return self.separator.join(text.strip() for text in texts if text and not is_blank(text)) or None
