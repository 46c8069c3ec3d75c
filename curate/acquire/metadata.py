"""Metadata files of Hugging Face's imagefolder: `metadata.jsonl`, `.csv` or `.parquet`, a row per image.

`file_name` is relative to the folder of the metadata file. A broken row with a readable `file_name` rejects only that
file, a row without one only itself. A row is about one image: other columns of paths (`mask_file_name`) are plain
fields, and lists of images (`file_names`) are an error.
"""

from __future__ import annotations

import csv
import io
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.acquire.fields import plain
from curate.acquire.records import MOST_BYTES, TOO_LONG, UNCLOSED_QUOTE, Records, fields_of, records
from curate.acquire.values import UNREADABLE, python_rows
from curate.codec.listing import FileInfo, open_file
from curate.core.errors import InputError, Reject
from curate.core.store.storage import Storage

csv.field_size_limit(2 * MOST_BYTES)  # of the process; Python's is 128 KiB
_BLOCK_BYTES = 4 << 20
METADATA_NAMES = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
NAME = "file_name"
BAD = "bad_metadata"

Row = dict[str, Any] | str
"""Fields of one file, or the reason of its reject."""

_SALVAGED = rb'%s\s*:\s*("(?:[^"\\]|\\.)*")'


def is_metadata(path: str) -> bool:
    return path.rpartition("/")[2] in METADATA_NAMES


def load_metadata(root: Storage, files: list[FileInfo], column: str = NAME) -> dict[str, Row]:
    """Path relative to the root, in `column` of the files -> row; the file nearest to an image takes precedence.

    A row without a name that can be read is a reject by its line. Raises InputError if there are no others, for two
    different rows of one file, and for files that cannot be read.
    """
    rows: dict[str, Row] = {}
    for file in sorted(files, key=lambda file: (file.path.count("/"), file.path)):
        rows |= _load(root, file, column)
    return rows


def joined(place: str, rows: Mapping[str, Row], paths: Iterable[str]) -> dict[str, Row]:
    """Path -> the row whose name is the path or its end, with or without the extension; the longest name wins.

    Raises InputError if a name is the end of two paths, or no name is the end of any.
    """
    known = list(paths)
    whole, used = set(known), dict[str, str]()
    for path in known:
        ends = [path.split("/", start)[-1] for start in range(path.count("/") + 1)]
        names = (name for end in ends for name in (end, posixpath.splitext(end)[0]))
        name = next((name for name in names if name in rows and (name == path or name not in whole)), None)
        if name is not None and used.setdefault(name, path) != path:
            raise InputError(f"{place}: {name!r} is both {used[name]!r} and {path!r}; write the paths of both")
    if not used:
        raise InputError(
            f"{place}: none of its {len(rows):,} rows names an image: {next(iter(rows), None)!r} is not the end of a "
            f"path such as {next(iter(known), None)!r}; name the column with file names in `metadata_key`"
        )
    return {path: rows[name] for name, path in used.items()}


def _load(root: Storage, file: FileInfo, column: str) -> dict[str, Row]:
    place, folder = root.url_of(file.path), posixpath.dirname(file.path)
    reader = {"jsonl": _jsonl, "csv": _csv, "parquet": _parquet}[file.path.rpartition(".")[2]]
    rows: dict[str, Row] = {}
    lines: dict[str, int] = {}
    unnamed: dict[str, InputError] = {}
    try:
        for line, name, row in reader(root, file.path, place, column):
            if isinstance(row, InputError):
                unnamed[f"{file.path}: line {line}"] = row
                continue
            path = posixpath.normpath(posixpath.join(folder, name))
            if rows.setdefault(path, row) != row:
                raise InputError(
                    f"{place}: line {line}: {name!r} has a different row in line {lines[path]}; remove one of them"
                )
            lines.setdefault(path, line)
    except OSError as error:
        raise InputError(f"{place}: cannot read it ({error}); check its permissions") from None
    if unnamed and not rows:
        raise next(iter(unnamed.values()))
    return rows | dict.fromkeys(unnamed, BAD)


Read = tuple[int, str, Row | InputError]
"""Line, name and row; or the error of a row without a name that can be read."""


def _read(line: int, row: Callable[..., tuple[str, Row]], *given: Any) -> Read:
    try:
        return line, *row(*given)
    except InputError as error:
        return line, "", error


def _jsonl(root: Storage, path: str, place: str, column: str) -> Iterator[Read]:
    with open_file(root, path) as lines:
        for number, line in enumerate(lines, start=1):
            text = line.removeprefix(b"\xef\xbb\xbf").strip()
            if text:
                yield _read(number, _json_row, text, f"{place}: line {number}", column)


def _json_row(text: bytes, place: str, column: str) -> tuple[str, Row]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        found = re.search(_SALVAGED % re.escape(json.dumps(column).encode()), text)
        if found is None:
            raise InputError(f"{place}: invalid JSON without a readable {column}; fix or remove the line") from None
        return _salvaged(found.group(1), place), BAD
    if not isinstance(value, dict):
        raise InputError(f"{place}: expected a JSON object with {column}, not {type(value).__name__}")
    return _named(value, place, column)


def _salvaged(quoted: bytes, place: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        raise InputError(f"{place}: invalid JSON with an invalid file_name; fix or remove the line") from None


def _named(fields: dict[str, Any], place: str, column: str) -> tuple[str, Row]:
    name = fields.pop(column, None)
    name = str(name) if isinstance(name, int) and not isinstance(name, bool) else name
    if name is UNREADABLE:
        raise InputError(f"{place}: {column} is not UTF-8; fix it")
    if not isinstance(name, str) or not name:
        found = ", ".join(fields) or "none"
        several = any(field.endswith(("file_name", "file_names")) for field in fields)
        remedy = "write a row per image" if several else "add the path of the image relative to this file"
        raise InputError(f"{place}: no {column} (fields: {found}); {remedy}")
    try:
        return plain(name), plain(fields)
    except Reject:
        return plain(name), BAD


def _csv(root: Storage, path: str, place: str, column: str) -> Iterator[Read]:
    names: list[str] | None = None
    with open_file(root, path) as file:
        for found in records(iter(lambda: file.read(_BLOCK_BYTES), b""), ","):
            if found.bad is not None:
                if names is None:
                    raise InputError(f"{place}: line {found.line}: {found.why}; expected the names of the columns")
                yield _read(found.line, _bad_row, names, found, f"{place}: line {found.line}", column)
            table = csv.reader(io.StringIO(_decoded(found.data), newline=""))
            for values in table:
                line = found.line + table.line_num - 1
                if not values:
                    continue
                if names is None:
                    names = values
                else:
                    bad = None if _is_utf8("".join(values)) else BAD
                    yield _read(line, _csv_row, names, values, f"{place}: line {line}", column, bad)


def _bad_row(names: list[str], found: Records, place: str, column: str) -> tuple[str, Row]:
    """The image of a line that cannot be a record, or the line if its name cannot be read; and the reason."""
    assert found.bad is not None
    values = [_decoded(value) for value in fields_of(found.bad, ",")]
    bad = UNCLOSED_QUOTE if found.why == UNCLOSED_QUOTE else BAD
    whole = values[:-1] if found.why == TOO_LONG else values
    if column not in names[: len(whole)]:
        return place.rpartition("/")[2], bad
    return _csv_row(names, whole, place, column, bad)


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _csv_row(names: list[str], values: list[str], place: str, column: str, bad: str | None) -> tuple[str, Row]:
    """Name and fields of an image, or the reason why it has none."""
    fields = dict(zip(names, values, strict=False))
    if not _is_utf8(fields.get(column, "")):
        raise InputError(f"{place}: {column} is not UTF-8; fix the line")
    name, row = _named(fields, place, column)
    return name, bad or row


def _is_utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _parquet(root: Storage, path: str, place: str, column: str) -> Iterator[Read]:
    number = 0
    with open_file(root, path) as file:
        try:
            for batch in pq.ParquetFile(file).iter_batches(1024):
                for fields in python_rows(batch):
                    number += 1
                    yield _read(number, _named, fields, f"{place}: row {number}", column)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise InputError(f"{place}: after row {number}: {error}; write the file again") from None
