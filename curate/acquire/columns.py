"""Which columns of a parquet file are the picture, the caption and the URL, and their values, however broken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from curate.acquire.fields import CAPTION_FIELDS
from curate.core.errors import InputError

IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "image_bytes", "bytes", "content", "picture", "data")
"""Names that a column of encoded pictures may have, best first; another is taken if it is the only binary one."""


class Broken:
    """Stands for a string whose bytes are not UTF-8."""


BROKEN = Broken()


@dataclass(frozen=True)
class Layout:
    """Column names of one file; None where it has no such column."""

    image: str
    caption: str | None
    url: str | None
    id: str | None
    fields: tuple[str, ...]
    """All others that are no binary data."""

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name in (self.image, self.caption, self.url, self.id, *self.fields) if name))


def find_layout(schema: pa.Schema, place: str, image: str | None, caption: str | None, id: str | None) -> Layout:
    """Named columns, or those that their names and types give away. Raises InputError naming the columns found."""
    types = {field.name: field.type for field in schema}
    for parameter, name in (("image", image), ("caption", caption), ("id", id)):
        if name is not None and name not in types:
            raise InputError(f"{place}: {parameter}: no column {name!r}; it has {_described(schema)}")
    if image is not None and not is_picture(types[image]):
        raise InputError(f"{place}: image: column {image!r} is {types[image]}; expected binary or struct<bytes, path>")
    image = image or _find_image(types)
    if image is None:
        raise InputError(f"{place}: no column of image bytes; it has {_described(schema)}; name one with `image`")
    caption = caption or next((name for name in CAPTION_FIELDS if name in types and is_text(types[name])), None)
    url = "url" if "url" in types and is_text(types["url"]) else None
    used = {image, caption, url, id}
    others = tuple(name for name, kind in types.items() if name not in used and not is_picture(kind))
    return Layout(image, caption, url, id, others)


def _find_image(types: dict[str, pa.DataType]) -> str | None:
    pictures = [name for name, kind in types.items() if is_picture(kind)]
    named = next((name for name in IMAGE_COLUMNS if name in pictures), None)
    return named or (pictures[0] if len(pictures) == 1 else None)


def is_picture(kind: pa.DataType) -> bool:
    """Binary, or Hugging Face's struct<bytes: binary, path: string>."""
    if pt.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and is_picture(kind.field(index).type)
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind) or pt.is_dictionary(kind))


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def values(column: pa.Array) -> list[Any]:
    """A column as Python values, BROKEN where a string's bytes are not UTF-8 (Parquet files do not promise it)."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return BROKEN


def rows(batch: pa.RecordBatch, names: Iterable[str]) -> list[dict[str, Any]]:
    """Rows of the named columns."""
    wanted = {name: values(batch.column(name)) for name in names}
    return [{name: column[i] for name, column in wanted.items()} for i in range(batch.num_rows)]
