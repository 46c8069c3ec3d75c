"""`text.tags`: the hashtags of a row as written, from its caption and from metadata fields."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field, field_validator

from curate.core.contracts import Batch, Map
from curate.core.items import texts_of
from curate.kernels.meta import META, field_at, fields_of
from curate.text.columns import plain_texts

_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u0670\u0900-\u0963\u0981-\u0e4e\u0eb1-\u1dff\u20d0-\u20f0"
_WORD = rf"[\w{_MARKS}\u200c\u200d]++"
_HASHTAGS = re.compile(rf"(?<![\w&/#＃])(?:[#＃]++{_WORD}(?:-{_WORD})*+)++")
_SIGNS = re.compile(r"[#＃]+")
_BETWEEN = re.compile(r"[,;|\n\r\t]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


class Tags(Map):
    """Collect the distinct tags of each row, in order: `#tag` in a caption, and values of `meta` fields.

    A field may be a list of tags, or a string of tags separated by commas, semicolons or # signs. Counters: tags,
    rows_without_tags, and dropped tags: `tags_too_long`, `tags_without_letters` (signs, emojis, numbers),
    `tags_too_many`.
    """

    op: ClassVar[str] = "text.tags"
    batch_rows: ClassVar[int] = 2048

    fields: tuple[str, ...] = Field(
        ("meta.keywords",),
        description="Fields of tags in the pool's meta (`meta.keywords`; a dot selects a nested field), or columns of "
        "strings or of lists of strings.",
    )
    caption: str | None = Field(
        "caption", description="Column of texts to search for #tags, before cleaning; null for none."
    )
    longest: int = Field(100, ge=1, description="Characters above which a tag is dropped.")
    most: int = Field(200, ge=1, description="Most tags of a row.")

    @field_validator("fields")
    @classmethod
    def _no_field_is_empty(cls, fields: tuple[str, ...]) -> tuple[str, ...]:
        if any(not name.removeprefix(META) for name in fields):
            raise ValueError("a field has no name; write meta.<field> or a column name")
        return fields

    def meta_fields(self) -> tuple[str, ...]:
        return () if self.fields == type(self).model_fields["fields"].default else self.fields

    def reads(self) -> tuple[str, ...]:
        columns = ["meta" if name.startswith(META) else name for name in self.fields]
        return tuple(dict.fromkeys([*([self.caption] if self.caption else []), *columns]))

    def schema(self) -> pa.Schema:
        of = {"of": "hashtags of the row as they were written, without the sign"}
        return pa.schema([pa.field("tags", pa.list_(pa.string()), metadata=of)])

    def process(self, batch: Batch) -> dict[str, Any]:
        self._check(batch.table)
        columns = {name: batch.column(name) for name in self.reads()}
        rows = []
        for number in range(len(batch)):
            row = {name: column[number] for name, column in columns.items()}
            tags = self._kept(self._found(row), batch.counters)
            batch.counters["rows_without_tags" if not tags else "tags"] += len(tags) or 1
            rows.append(tags)
        return {"tags": pa.array(rows, pa.list_(pa.string()))}

    def _check(self, table: pa.Table) -> None:
        """Raises CurateError for columns without texts."""
        if self.caption:
            plain_texts(self.op, self.caption, table.column(self.caption), "caption")
        for name in self.fields:
            if not name.startswith(META):
                texts_of(self.op, table.column(name), name, "fields")

    def _found(self, row: Mapping[str, Any]) -> Iterator[str]:
        if self.caption and row[self.caption]:
            yield from tags_of_text(row[self.caption])
        wanted = [name for name in self.fields if name.startswith(META)]
        meta = fields_of(row["meta"]) if wanted else {}
        for name in self.fields:
            value = field_at(meta, name.removeprefix(META)) if name.startswith(META) else row[name]
            yield from tags_of_value(value)

    def _kept(self, tags: Iterable[str], counters: Counter[str]) -> list[str]:
        kept: dict[str, None] = {}
        for tag in tags:
            if len(tag) > self.longest:
                counters["tags_too_long"] += 1
            elif not any(map(str.isalpha, tag)):
                counters["tags_without_letters"] += 1
            elif len(kept) >= self.most and tag not in kept:
                counters["tags_too_many"] += 1
            else:
                kept[tag] = None
        return list(kept)


def tags_of_text(text: str) -> list[str]:
    """`#tag`s of a caption, single or in a chain (#a#b), with inner hyphens; not after a letter, `&` or `/` (C#, &#39;,
    page/#top)."""
    if "#" not in text and "＃" not in text:
        return []
    return [tag for chain in _HASHTAGS.findall(text) for tag in _SIGNS.split(chain) if tag]


def without_tags(text: str) -> str:
    """A caption without its #tags."""
    return _HASHTAGS.sub(" ", text) if "#" in text or "＃" in text else text


def tags_of_value(value: Any) -> Iterator[str]:
    """Tags of a string or of a list's strings; other values have no tags."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            for part in _BETWEEN.split(item):
                for tag in _SIGNS.split(part):
                    if tag := _CONTROL.sub(" ", tag).strip():
                        yield tag
