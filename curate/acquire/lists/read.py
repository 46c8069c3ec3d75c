"""Reads the files of a list as streams: parquet by row groups, CSV and JSON lines by blocks, also compressed ones.

A line that cannot be read is a reject. A file that cannot be read is an error, since its rows are unknown.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from curate.acquire.fields import DEEP, plain, split_caption
from curate.acquire.lists.columns import DIGITS, Layout, dump, find_layout, is_bytes, is_text, meta_of
from curate.acquire.lists.rows import BrokenLine, Rows
from curate.acquire.records import Records, records
from curate.codec.listing import open_file
from curate.codec.patterns import has_suffix
from curate.core.errors import InputError, Reject
from curate.core.store.storage import Storage

BATCH_ROWS, BATCH_BYTES = 1 << 16, 32 << 20
"""Most rows of a batch, and about the most decoded bytes of a batch of parquet."""
BUFFER_BYTES = 1 << 20
"""Read-ahead per column. Without it, Arrow reads whole column chunks, that is, whole row groups."""
READ_BYTES = JSON_BLOCK_BYTES = 4 << 20
LINE_BYTES = 32 << 20
"""Longer lines of JSON are rejected unread."""
HEAD_BYTES = 1 << 20
"""Read at a time to find the names of the columns."""
SHOWN_BYTES = 1000
_MARK = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""Marks at the beginning of such a text."""
_LONG = re.compile(rb"[0-9]{19}")
"""Perhaps a number of more than 64 bits."""


@dataclass(frozen=True)
class ListFile:
    """A file of a list."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Extensions of such files."""
    shared: ClassVar[bool] = False
    """Whether several workers can read shares of one file."""

    root: Storage
    path: str
    delimiter: str | None = None
    quotes: bool | None = None
    """Whether double quotes enclose fields; None: as usual for the format."""
    broken: list[BrokenLine] = field(default_factory=list)
    """Lines that could not be read since the last rows."""

    @property
    def place(self) -> str:
        return self.root.url_of(self.path)

    def layout(self, given: Mapping[str, str | None], keep: Sequence[str] | None) -> Layout | None:
        """Which column is what; None if the file has no rows. Raises InputError."""
        with self._readable():
            names = self._names()
        return find_layout(names, self.place, given, keep) if names else None

    def rows(self, layout: Layout, share: tuple[int, int] = (0, 1)) -> Iterator[Rows]:
        """Rows of a share of the file: (number, of how many). Raises InputError."""
        with self._readable():
            yield from self._rows(layout, share)

    def check(self, layout: Layout, given: Mapping[str, str | None], keep: Sequence[str] | None) -> None:
        """Raises InputError if the columns differ from those of the first file."""
        found = self.layout(given, keep)
        if found is not None and found != layout:
            differ = ", ".join(sorted(set(found.names()) ^ set(layout.names())))
            remedy = "make them equal, or set `columns` and `keep`"
            raise InputError(f"{self.place}: columns differ from those of the first file ({differ}); {remedy}")

    def _names(self) -> list[str] | None:
        raise NotImplementedError

    def _rows(self, layout: Layout, share: tuple[int, int]) -> Iterator[Rows]:
        raise NotImplementedError

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Explains Arrow's errors, of which those of compressed streams are OSErrors without errno."""
        try:
            yield
        except FileNotFoundError:
            raise InputError(f"{self.place}: deleted while it was read; run again") from None
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            why = next(iter(str(error).splitlines()), type(error).__name__)[:200]
            raise InputError(f"{self.place}: cannot be read ({why}); replace or remove it") from None

    @contextmanager
    def _stream(self) -> Iterator[Any]:
        """Decompressed bytes."""
        codec = {"gz": "gzip", "zst": "zstd"}.get(self.path.lower().rpartition(".")[2])
        with open_file(self.root, self.path) as opened, pa.PythonFile(opened, "r") as source:
            if codec is None:
                yield source
            else:
                with pa.CompressedInputStream(source, codec) as stream:
                    yield stream

    def _head(self) -> tuple[list[bytes], bool]:
        """(the first lines, none of them cut; whether there are more)."""
        data = b""
        with self._stream() as stream:
            while (some := stream.read(HEAD_BYTES)) and len(data) <= LINE_BYTES:
                data += some
                if data.count(b"\n") > 1:
                    break
            more = bool(stream.read(1))
        lines = data.removeprefix(_MARK).splitlines(keepends=True)
        return (lines[:-1] if more else lines), more


class ParquetList(ListFile):
    suffixes = ("parquet",)
    shared = True

    def _open(self, opened: IO[bytes]) -> pq.ParquetFile:
        return pq.ParquetFile(opened, buffer_size=BUFFER_BYTES, pre_buffer=False)

    def _names(self) -> list[str] | None:
        """Columns of bytes (images) cannot be kept, hence only those that may be text."""
        with open_file(self.root, self.path) as opened:
            parquet = self._open(opened)
            kept = {one.name for one in parquet.schema_arrow if not is_bytes(one.type)}
            names = [name for name in parquet.schema_arrow.names if name in kept]
            if not names:
                found = ", ".join(f"{one.name[:40]!r} ({one.type})" for one in parquet.schema_arrow)
                raise InputError(f"{self.place}: no column has text; found {found[:300]}; write the URLs as strings")
            return names if parquet.metadata.num_rows else None

    def _rows(self, layout: Layout, share: tuple[int, int]) -> Iterator[Rows]:
        number, of = share
        with open_file(self.root, self.path) as opened:
            parquet = self._open(opened)
            kind = parquet.schema_arrow.field(layout.url).type
            if not is_text(kind):
                raise InputError(f"{self.place}: column {layout.url!r} is {kind}; expected text")
            groups = parquet.metadata.num_row_groups
            for group in range(groups * number // of, groups * (number + 1) // of):
                info = parquet.metadata.row_group(group)
                most = max(1, min(BATCH_ROWS, BATCH_BYTES * info.num_rows // max(1, info.total_byte_size)))
                for batch in parquet.iter_batches(most, [group], layout.names(), use_threads=False):
                    yield _of_batch(batch, layout)


class CsvList(ListFile):
    suffixes = ("csv", "tsv", "csv.gz", "tsv.gz", "csv.zst", "tsv.zst")

    @property
    def _separator(self) -> str:
        return self.delimiter or ("\t" if self._is_tsv else ",")

    @property
    def _quoted(self) -> bool:
        return not self._is_tsv if self.quotes is None else self.quotes

    @property
    def _is_tsv(self) -> bool:
        return has_suffix(self.path, ("tsv", "tsv.gz", "tsv.zst"))

    def _records(self, stream: Any) -> tuple[list[str] | None, Iterator[Records]]:
        """(names of the columns, the records after them); no names if there is no record."""
        blocks = iter(lambda: bytes(stream.read(READ_BYTES)), b"")
        found = records(blocks, self._separator, quotes=self._quoted)
        first = next((one for one in found if one.bad is not None or one.data.strip(b"\r\n")), None)
        if first is None:
            return None, found
        if first.bad is not None:
            raise InputError(f"{self.place}: line {first.line}: {first.why}; expected the names of the columns")
        if first.data.startswith(UTF_16):
            raise InputError(f"{self.place}: text in UTF-16; convert it to UTF-8")
        texts = (line.decode("utf-8", "replace") for line in first.data.splitlines(keepends=True))
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self._quoted else csv.QUOTE_NONE
        names = next(csv.reader(texts, delimiter=self._separator, quoting=quoting))
        return [name or f"column_{number}" for number, name in enumerate(names, 1)], found

    def _names(self) -> list[str] | None:
        with self._stream() as stream:
            names, found = self._records(stream)
            return names if any(one.bad is not None or one.data.strip(b"\r\n") for one in found) else None

    def _rows(self, layout: Layout, share: tuple[int, int]) -> Iterator[Rows]:
        with self._stream() as stream:
            names, found = self._records(stream)
            held, size = list[bytes](), 0
            for one in found:
                if one.bad is not None:
                    text = one.bad.decode("utf-8", "replace").rstrip()
                    self.broken.append(BrokenLine(f"{self.path}, line {one.line}", text, one.why))
                held.append(one.data)
                size += len(one.data)
                if size >= READ_BYTES or len(self.broken) >= BATCH_ROWS:
                    yield from self._parsed(b"".join(held), names, layout)
                    held, size = [], 0
            yield from self._parsed(b"".join(held), names, layout)

    def _parsed(self, data: bytes, names: list[str] | None, layout: Layout) -> Iterator[Rows]:
        """Rows of whole records."""
        if not data.strip(b"\r\n"):
            yield _of_objects([], layout)
            return
        read = arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names)
        quotes = {"quote_char": '"', "newlines_in_values": True} if self._quoted else {"quote_char": False}
        parse = arrow_csv.ParseOptions(delimiter=self._separator, **quotes)
        wanted = layout.names()
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(wanted, pa.string()), include_columns=wanted, check_utf8=False
        )
        table = arrow_csv.read_csv(pa.BufferReader(data), read, parse, convert)
        for batch in table.combine_chunks().to_batches(BATCH_ROWS):
            yield _of_batch(batch, layout)


class JsonList(ListFile):
    suffixes = ("jsonl", "ndjson", "jsonl.gz", "ndjson.gz", "jsonl.zst", "ndjson.zst")

    def layout(self, given: Mapping[str, str | None], keep: Sequence[str] | None) -> Layout | None:
        found = super().layout(given, keep)
        return replace(found, meta=None) if found and keep is None else found

    def check(self, layout: Layout, given: Mapping[str, str | None], keep: Sequence[str] | None) -> None:
        """Nothing: every line says which fields it has."""

    def _names(self) -> list[str] | None:
        lines = [line for line in self._head()[0] if line.strip()]
        found = [value for line in lines if isinstance(value := _parsed(line), dict)]
        if lines and not found:
            raise InputError(f"{self.place}: no line is a JSON object; expected an object per line")
        return list({name: None for value in found for name in value}) or None

    def _rows(self, layout: Layout, share: tuple[int, int]) -> Iterator[Rows]:
        number = 0
        with self._stream() as stream:
            for lines in _blocks(stream):
                objects: list[dict[str, Any]] = []
                for number, line in enumerate(lines, number + 1):  # noqa: B020
                    value = _parsed(line)
                    if isinstance(value, dict):
                        objects.append(value)
                    elif line.strip():
                        text = line[:SHOWN_BYTES].decode("utf-8", "replace")
                        self.broken.append(BrokenLine(f"{self.path}, line {number}", text, "not a JSON object"))
                yield _of_objects(objects, layout)


FORMATS: dict[str, type[ListFile]] = {"parquet": ParquetList, "csv": CsvList, "jsonl": JsonList}


def _of_batch(batch: pa.RecordBatch, layout: Layout) -> Rows:
    column = {name: batch.column(name) for name in layout.names()}
    digests = {role: column[name] for role in DIGITS if (name := getattr(layout, role)) is not None}
    caption = None if layout.caption is None else column[layout.caption]
    return Rows(column[layout.url], caption, digests, meta_of(batch, layout.meta or ()))


# --- JSON lines ---


def _blocks(stream: Any) -> Iterator[list[bytes]]:
    """Lines of a stream. A line longer than LINE_BYTES is cut."""
    rest, skipping = b"", False
    first = True
    while data := stream.read(JSON_BLOCK_BYTES):
        lines = (rest + (data.removeprefix(_MARK) if first else data)).split(b"\n")
        first, rest = False, lines.pop()
        if skipping and lines:
            lines, skipping = lines[1:], False
        if skipping:
            rest = b""
        elif len(rest) > LINE_BYTES:
            lines.append(rest[:SHOWN_BYTES])
            rest, skipping = b"", True
        yield lines
    if rest:
        yield [rest]


def _parsed(line: bytes) -> Any:
    """A JSON value; None for one that cannot be read, or is nested too deeply to be kept."""
    try:
        value = json.loads(line)
        return plain(value) if line.count(b"[") + line.count(b"{") > DEEP or _LONG.search(line) else value
    except (ValueError, RecursionError, Reject):
        return None


def _of_objects(objects: Sequence[dict[str, Any]], layout: Layout) -> Rows:
    """Rows of JSON objects, from which the columns are removed."""
    names = {role: name for role in ("url", *DIGITS) if (name := getattr(layout, role)) is not None}
    columns: dict[str, list[Any]] = {role: [] for role in names}
    captions: list[str | None] = []
    metas: list[str] = []
    for one in objects:
        if layout.caption is not None:
            value = one.pop(layout.caption, None)
            captions.append(split_caption({layout.caption: value}, layout.caption)[0])
            if isinstance(value, list):
                one[layout.caption] = value
        for role, name in names.items():
            columns[role].append(_text(one.pop(name, None)))
        kept = one if layout.meta is None else {name: one[name] for name in layout.meta if name in one}
        metas.append(dump(kept))
    found = {role: _strings(values) for role, values in columns.items()}
    url = found.pop("url")
    return Rows(url, None if layout.caption is None else _strings(captions), found, _strings(metas))


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def _strings(values: Sequence[str | None]) -> pa.StringArray:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:  # unpaired surrogates
        return pa.array([plain(value) for value in values], pa.string())
