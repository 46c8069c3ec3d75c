"""Divides CSV into records, so that an unclosed quote costs one line, not all lines up to the next quote.

A quoted field may span lines (RFC 4180). Its quote is unclosed if the file ends inside of it, if text follows its
closing quote, or if lines that it took in are records of the table themselves; reading then resumes at the second line.
A record of another width than the table is one reject, however many lines it has.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

UNCLOSED_QUOTE = "unclosed_quote"
REASONS = {UNCLOSED_QUOTE: "a field of this line begins with a quote that is not closed; close it, or double it"}
MOST_BYTES = 16 << 20
"""A record may not be longer."""
TOO_LONG = f"more than {MOST_BYTES >> 20} MiB"
SHOWN_BYTES = 1000
MISFITS = 10
"""The lines that a field took in are records even if one in this many could not be."""
_BREAK = rb"(?:\r\n?|\n)"
_FIRST = re.compile(_BREAK)
_BLANK = re.compile(rb"%s*+" % _BREAK)
_MARK = b"\xef\xbb\xbf"
_EMPTY = (b"\n", b"\r", b"\r\n")
_NAMES = (re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://\S+"), re.compile(rb"\S+\.[A-Za-z0-9]{2,5}"))
"""URLs and names of files: values that show which column they are of."""


@dataclass(frozen=True)
class Records:
    """Whole records, perhaps with empty lines; or a line, or several in quotes, that the table cannot hold."""

    data: bytes
    line: int
    """Number of the first line, from 1."""
    bad: bytes | None = None
    why: str = ""
    """What is wrong with `bad`: UNCLOSED_QUOTE, its number of columns, or TOO_LONG, and it is cut."""


class Grammar:
    """What is a record, given the delimiter; without `quotes`, a line."""

    def __init__(self, delimiter: str, *, quotes: bool) -> None:
        self.quotes, self.delimiter = quotes, delimiter.encode()
        self.of = re.escape(self.delimiter)
        self.bare = rb'(?!")[^%s\r\n]*+' % self.of
        self.field = re.compile(rb'(?:"(?:[^"]++|"")*+"|%s)' % self.bare)
        self.after = re.compile(rb"(%s)|%s|\Z" % (self.of, _BREAK))
        self.width: int | None = None

    def set_width(self, width: int) -> None:
        """Set the width of the table, by its first record."""
        self.width, any_text = width, rb"[^%s\r\n]*+" % self.of
        field = rb'(?:"(?:[^"\r\n]++|"")*+"|%s)' % self.bare if self.quotes else any_text
        self.run = re.compile(rb"(?:(?:%s(?:%s%s){%d})?+%s)*+" % (field, self.of, field, width - 1, _BREAK))
        """Records of one line each, and empty lines."""

    def one_line_each(self, data: bytes, start: int) -> int:
        """The end of the records at `start` that have one line each."""
        if self.width is None:
            found = _BLANK.match(data, start)
            return start if found is None else found.end()
        if not (start or (self.quotes and b'"' in data) or b"\r" in data or b"\n\n" in data or data[:1] == b"\n"):
            end = data.rfind(b"\n") + 1  # the usual case, five times as fast
            held = np.frombuffer(data, np.uint8, end)
            breaks, delimiters = (np.flatnonzero(held == ord(one)) for one in (b"\n", self.delimiter))
            if (np.diff(np.searchsorted(delimiters, breaks), prepend=0) == self.width - 1).all():
                return end
        found = self.run.match(data, start)
        return start if found is None else found.end()

    def record(self, data: bytes, start: int) -> tuple[int, int | None]:
        """(where the record at `start` ends, number of its fields); no number if a quote is not closed, or has taken in
        a record. Unless a quote is open, the end of `data` counts as that of the file."""
        if not self.quotes:
            found = _FIRST.search(data, start)
            end = len(data) if found is None else found.end()
            return end, data.count(self.delimiter, start, end) + 1
        place, several = start, False
        for number in itertools.count(1):
            field = self.field.match(data, place)
            if field is None:  # the quote that begins here is never closed
                return len(data), None
            after = self.after.match(data, field.end())
            if after is None:  # text follows the closing quote
                return field.end(), None
            several = several or _FIRST.search(data, place, field.end()) is not None
            if several and number == self.width and after.group(1) and self.took_in_one(data[start : field.end()]):
                return field.end(), None
            place = after.end()
            if after.group(1) is None:
                return place, number
        raise AssertionError

    def fields(self, line: bytes) -> list[bytes]:
        """Values of a line of which a quote may be open."""
        found, place = list[bytes](), 0
        while (field := self.field.match(line, place)) and (after := self.after.match(line, field.end())):
            value = field.group()
            found.append(value[1:-1].replace(b'""', b'"') if value[:1] == b'"' else value)
            if not after.group(1):
                return found
            place = after.end()
        return found + line[place:].removeprefix(b'"').rstrip(b"\r\n").split(self.delimiter)

    def _misfits(self, record: bytes) -> list[bool] | None:
        """Whether each line but the first cannot be a record of the table: it has another width, or no URL or
        file name in the column in which the first line has one. None if the first has no such column, and there is one
        other, which proves nothing."""
        first, *others = (self.fields(line) for line in record.splitlines())
        kinds = ((column, kind) for column, value in enumerate(first) for kind in _NAMES if kind.fullmatch(value))
        column, kind = next(kinds, (0, None))
        if kind is None and len(others) == 1:
            return None
        return [len(line) != self.width or not (kind is None or kind.fullmatch(line[column])) for line in others]

    def took_in_one(self, record: bytes) -> bool:
        """Whether a line of a record is a record itself. For records of another width than the table."""
        return self.width != 1 and not all(self._misfits(record) or (True,))

    def took_in_records(self, record: bytes) -> bool:
        """Whether the lines of a record, which has the table's width, are records themselves."""
        if self.width == 1 or len(self.fields(record.splitlines()[0])) != self.width:
            return False
        misfits = self._misfits(record)
        return misfits is not None and not misfits.pop() and sum(misfits) <= len(misfits) // MISFITS

    def fault(self, record: bytes, fields: int | None) -> str:
        """What is wrong with a record of the table, if anything: UNCLOSED_QUOTE, or its number of columns."""
        if record in _EMPTY:
            return ""
        if fields is None or len(record) > MOST_BYTES:
            return UNCLOSED_QUOTE
        took_in = self.took_in_records if fields == self.width else self.took_in_one
        if _lines(record) > 1 and took_in(record):
            return UNCLOSED_QUOTE
        return "" if fields == self.width else f"{fields} columns, expected {self.width}"


def _lines(data: bytes) -> int:
    breaks = data.count(b"\n")
    if b"\r" in data:
        breaks += data.count(b"\r") - data.count(b"\r\n")
    return breaks + (data[-1:] not in (b"", b"\n", b"\r"))


def records(blocks: Iterable[bytes], delimiter: str, *, quotes: bool = True) -> Iterator[Records]:
    """The records of a table in order, without a byte order mark. The first, which comes alone, has its width."""
    grammar = Grammar(delimiter, quotes=quotes)
    rest, line, cut = b"", 1, False
    for block in itertools.chain(blocks, (b"",)):
        held, rest = rest + block, b""
        if line == 1:
            held = held.removeprefix(_MARK)
        if block and held.endswith(b"\r"):  # perhaps half of a line break
            held, rest = held[:-1], b"\r"
        place = 0
        if cut:
            found = _FIRST.search(held)
            place, cut = (len(held), True) if found is None else (found.end(), False)
        while place < len(held):
            end = grammar.one_line_each(held, place)
            if end > place and (place or end <= MOST_BYTES):  # else a first line, read in parts, may be too long
                one = Records(held[place:end], line)
            else:
                end, fields = grammar.record(held, place)
                if end == len(held) and block and end - place <= MOST_BYTES:
                    break  # until more is read
                data = held[place:end]
                if grammar.width is None and fields and data not in _EMPTY and len(data) <= MOST_BYTES:
                    grammar.set_width(fields)
                one = Records(data, line)
                why = grammar.fault(data, fields)
                if why and why != UNCLOSED_QUOTE:
                    one = Records(b"", line, data, why)
                elif why:
                    found = _FIRST.search(held, place)
                    if found is None and block and len(held) - place <= MOST_BYTES:
                        break  # until the line is whole
                    end = len(held) if found is None else found.end()
                    data = held[place:end]
                    if end - place > MOST_BYTES:
                        data, why, cut = data[:SHOWN_BYTES], TOO_LONG, found is None
                    one = Records(b"", line, data, why)
            yield one
            line += _lines(one.data or one.bad or b"")
            place = end
        rest = held[place:] + rest


def fields_of(line: bytes, delimiter: str) -> list[bytes]:
    """Values of a line of which a quote may be open."""
    return Grammar(delimiter, quotes=True).fields(line)
