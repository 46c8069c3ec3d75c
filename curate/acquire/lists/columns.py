"""Columns of a list, whatever they are called: URL, caption, digests, and all others as the JSON object `meta`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.acquire.fields import CAPTION_FIELDS, plain, split_caption
from curate.acquire.values import python_rows, python_values
from curate.core.errors import InputError, did_you_mean

NAMES = {
    "url": ("url", "image_url", "img_url", "imageurl", "image_link", "link", "uri", "src"),
    "caption": CAPTION_FIELDS,
    "sha256": ("sha256",),
    "md5": ("md5",),
}
"""Usual names of each column, in order of preference; upper and lower case are the same."""
DIGITS = {"sha256": 64, "md5": 32}
"""Hexadecimal digits of a digest."""
NOT_UTF8 = "\ufffd"
"""In place of a text within a list or struct that is not UTF-8."""


@dataclass(frozen=True)
class Layout:
    """Names of the columns in the files. None: there is none."""

    url: str
    caption: str | None = None
    sha256: str | None = None
    md5: str | None = None
    meta: tuple[str, ...] | None = ()
    """Others to keep, sorted. None: all others of each JSON object."""

    def names(self) -> list[str]:
        given = (self.url, self.caption, self.sha256, self.md5, *(self.meta or ()))
        return list(dict.fromkeys(name for name in given if name is not None))


def find_layout(
    names: Sequence[str], place: str, given: Mapping[str, str | None], keep: Sequence[str] | None
) -> Layout:
    """The given columns, the others by their usual names, and those to keep (None: all others). Raises InputError."""
    shown = ", ".join(repr(name[:40]) for name in names[:20]) + (" …" if len(names) > 20 else "")
    if len(set(names)) < len(names):
        raise InputError(f"{place}: two columns have one name; found {shown}; rename one of them")
    for role, name in given.items():
        if name is not None and name not in names:
            raise InputError(f"{place}: columns.{role}: no column {name!r}; found {shown}")
    for name in keep or ():
        if name not in names:
            raise InputError(f"{place}: keep: no column {name!r}; {did_you_mean(name, names, f'found {shown}')}")
    found = {role: given[role] if role in given else _usual(role, names) for role in NAMES}
    if found["url"] is None:
        remedy = "or add the line of names" if len(names) > 1 else "add the line of names, or set `delimiter`"
        if any(name.startswith('"') for name in names):
            remedy = "or set `quotes: true`"
        raise InputError(f"{place}: no column is called url; found {shown}; set columns: {{url: NAME}}, {remedy}")
    used = {name for name in found.values() if name is not None}
    others = [name for name in names if name not in used] if keep is None else keep
    return Layout(found["url"], found["caption"], found["sha256"], found["md5"], tuple(sorted(set(others))))


def _usual(role: str, names: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in NAMES[role] if name in lower), None)


# --- strings ---


def strings(column: pa.Array) -> tuple[pa.StringArray, pa.BooleanArray | None]:
    """(a column as text, which rows were not UTF-8). Invalid bytes become U+FFFD."""
    if is_text(column.type):
        column = column.dictionary_decode() if pt.is_dictionary(column.type) else column
        column = pc.cast(column, options=pc.CastOptions(pa.string(), allow_invalid_utf8=True))
    else:
        column = pa.array([None if value is None else str(plain(value)) for value in _values(column)], pa.string())
    try:
        column.validate(full=True)
        return column, None
    except pa.ArrowInvalid:
        values = column.cast(pa.binary()).to_pylist()
    texts = [None if value is None else value.decode("utf-8", "replace") for value in values]
    bad = [value is not None and not _is_utf8(value) for value in values]
    return pa.array(texts, pa.string()), pa.array(bad)


def _values(column: pa.Array) -> list[Any]:
    return python_values(column, NOT_UTF8)


def is_text(kind: pa.DataType) -> bool:
    if pt.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are bytes, or structs with bytes, such as Hugging Face's images."""
    if pt.is_struct(kind):
        return any(is_bytes(field.type) for field in kind)
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def caption_of(column: pa.Array) -> tuple[pa.StringArray, pa.BooleanArray | None]:
    """Stripped captions, null if empty, and which were not UTF-8. The first text of a list."""
    if not is_text(column.type):
        values = [split_caption({"caption": plain(value)}, "caption")[0] for value in _values(column)]
        column = pa.array(values, pa.string())
    text, bad = strings(column)
    text = pc.utf8_trim_whitespace(text)
    empty = pc.equal(text, "")
    return pc.if_else(empty, None, text) if pc.any(empty).as_py() else text, bad


def digest_of(column: pa.StringArray, role: str) -> tuple[pa.StringArray, pa.BooleanArray]:
    """Digests in lower case, and which values are not digests."""
    text = pc.ascii_lower(pc.utf8_trim_whitespace(column))
    good = pc.match_substring_regex(text, f"^[0-9a-f]{{{DIGITS[role]}}}$")
    return pc.if_else(good, text, None), pc.fill_null(pc.and_not(pc.not_equal(text, ""), good), False)


# --- meta ---


def meta_of(batch: pa.RecordBatch, names: Sequence[str]) -> pa.StringArray:
    """A JSON object per row, with sorted keys."""
    if not names:
        return pa.array(["{}"] * batch.num_rows, pa.string())
    columns = {name: _json_ready(batch.column(name)) for name in sorted(names)}
    if all(column is not None and "\0" not in name for name, column in columns.items()):  # Polars rejects it in names
        frame = pl.DataFrame(columns)
        encoded = frame.select(pl.struct(pl.all()).struct.json_encode()).to_series().rechunk()
        return encoded.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())
    return pa.array([dump(row) for row in python_rows(batch.select(list(columns)), unreadable=NOT_UTF8)], pa.string())


def dump(fields: Mapping[str, Any]) -> str:
    """A JSON object without spaces, with sorted keys."""
    try:
        text = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (ValueError, TypeError):
        text = json.dumps(plain(fields), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return text


def _json_ready(column: pa.Array) -> pl.Series | None:
    """As numbers or text; None if only Python can write it."""
    kind = column.type
    if is_text(kind):
        text, _ = strings(column)
        return pl.Series(pl.from_arrow(text))
    if pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_null(kind) or pt.is_float64(kind):
        return pl.Series(pl.from_arrow(column))
    if pt.is_floating(kind):
        return pl.Series(pl.from_arrow(column.cast(pa.float64())))
    if pt.is_temporal(kind) or pt.is_decimal(kind):
        return pl.Series([plain(value) for value in _values(column)], strict=False)
    return None


def added(meta: pa.StringArray, rows: pa.BooleanArray, name: str, values: pa.StringArray) -> pa.StringArray:
    """`meta` with a further field in some rows."""
    places = np.flatnonzero(rows.to_numpy(zero_copy_only=False))
    if not len(places):
        return meta
    chosen = zip(meta.take(pa.array(places)).to_pylist(), values.take(pa.array(places)).to_pylist(), strict=True)
    texts = [dump(json.loads(text) | {name: value}) for text, value in chosen]
    return pc.replace_with_mask(meta, rows, pa.array(texts, pa.string()))
