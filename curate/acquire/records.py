"""Divides CSV into records, so that an unclosed quote costs one line, not all lines up to the next quote.

A quoted field may span lines (RFC 4180). Its quote is unclosed if the file ends inside of it, if text follows its
closing quote, if its record has another width than the table, or if the lines that it took in are records of the
table's width themselves; reading then resumes at the second line.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

UNCLOSED_QUOTE = "unclosed_quote"
REASONS = {UNCLOSED_QUOTE: "a field of this line begins with a quote that no later one closes; write it twice, or both"}
MOST_BYTES = 16 << 20
"""A record may not be longer."""
MISFITS = 10
"""The lines that a field took in are records even if one line in this many has another width."""
_BREAK = rb"(?:\r\n?|\n)"
_FIRST = re.compile(_BREAK)
_LINES = re.compile(rb"(?:[^\r\n]++%s)*+" % _BREAK)
_EMPTY = (b"\n", b"\r", b"\r\n")


@dataclass(frozen=True)
class Records:
    """Whole records, then the line after them if its quote is not closed."""

    data: bytes
    count: int
    line: int
    """Number of the first line, from 1."""
    unclosed: bytes | None = None


class Grammar:
    """What is a record, given the delimiter; without `quotes`, a line."""

    def __init__(self, delimiter: str, *, quotes: bool) -> None:
        of = re.escape(delimiter.encode())
        self.quotes = quotes
        quoted, bare = rb'"(?:[^"\r\n]++|"")*+"', rb'(?!")[^%s\r\n]*+' % of
        field = rb"(?:%s|%s)" % (quoted, bare)
        self.run = re.compile(rb"(?:(?![\r\n])%s(?:%s%s)*+%s)*+" % (field, of, field, _BREAK))
        """Records of one line each."""
        strict = rb'(?:%s|[^"%s\r\n]*+)' % (quoted, of)
        self.strict = re.compile(rb"%s(?:%s%s)*+" % (strict, of, strict))
        self.field = re.compile(rb'(?:"(?:[^"]++|"")*+"|%s)' % bare)
        self.after = re.compile(rb"(%s)|%s|\Z" % (of, _BREAK))
        self.delimiter = delimiter.encode()

    def one_line_each(self, data: bytes, start: int) -> int:
        """The end of the records at `start` that have one line each, of which the last may be unfinished."""
        if start or (self.quotes and b'"' in data) or b"\r" in data or b"\n\n" in data or data.startswith(b"\n"):
            found = (self.run if self.quotes else _LINES).match(data, start)
            return start if found is None else found.end()
        return data.rfind(b"\n") + 1  # the usual case, ten times as fast

    def width(self, record: bytes) -> int:
        return len(re.sub(rb'"(?:[^"]++|"")*+"', b"", record).split(self.delimiter))

    def record(self, data: bytes, start: int) -> tuple[int, bool]:
        """(where the record at `start` ends, whether all its quotes are closed). The end of `data` is that of the file
        if no quote is open there."""
        if not self.quotes:
            found = _FIRST.search(data, start)
            return (len(data) if found is None else found.end()), True
        place = start
        while True:
            field = self.field.match(data, place)
            if field is None:  # the quote that begins here is never closed
                return len(data), False
            after = self.after.match(data, field.end())
            if after is None:  # text follows the closing quote
                return field.end(), False
            place = after.end()
            if after.group(1) is None:
                return place, True

    def whole_fields(self, line: bytes) -> list[bytes]:
        """The fields of a line before the one whose quote is not closed."""
        found, place = list[bytes](), 0
        while (field := self.field.match(line, place)) and (after := self.after.match(line, field.end())):
            value = field.group()
            found.append(value[1:-1].replace(b'""', b'"') if value[:1] == b'"' else value)
            if not after.group(1):
                break
            place = after.end()
        return found

    def took_in_records(self, record: bytes, width: int | None) -> bool:
        """Whether a record of several lines is the work of an unclosed quote. Two lines alone prove nothing."""
        if width is None:
            return False
        record = record.rstrip(b"\r\n")
        if self.width(record) != width:
            return True
        first, *inner, last = record.splitlines()
        if width == 1 or not inner or not self.width(first) == self.width(last) == width:
            return False
        misfits = sum(not self.strict.fullmatch(line) or self.width(line) != width for line in inner)
        return misfits <= len(inner) // MISFITS


def _lines(data: bytes) -> int:
    breaks = data.count(b"\n")
    if b"\r" in data:
        breaks += data.count(b"\r") - data.count(b"\r\n")
    return breaks + (data[-1:] not in (b"", b"\n", b"\r"))


def records(blocks: Iterable[bytes], delimiter: str, *, quotes: bool = True) -> Iterator[Records]:
    """The records of a table in order; the first has the table's width."""
    grammar = Grammar(delimiter, quotes=quotes)
    rest, line, width = b"", 1, None
    for block in itertools.chain(blocks, (b"",)):
        held, rest = rest + block, b""
        if block and held.endswith(b"\r"):  # perhaps half of a line break
            held, rest = held[:-1], b"\r"
        place = 0
        while place < len(held):
            end = grammar.one_line_each(held, place)
            data, unclosed = held[place:end], None
            count = lines = _lines(data)
            if not data:
                end, closed = grammar.record(held, place)
                if end == len(held) and block:
                    if end - place < MOST_BYTES:
                        break  # until more is read
                    closed = False
                data = held[place:end]
                lines, count = _lines(data), int(data not in _EMPTY)
                if not closed or (lines > 1 and grammar.took_in_records(data, width)):
                    found = _FIRST.search(held, place)
                    if found is None and block and len(held) - place < MOST_BYTES:
                        break  # until the line is whole
                    end = len(held) if found is None else found.end()
                    data, unclosed, lines, count = b"", held[place:end], 1, 0
            if width is None and count:
                width = grammar.width(data[: grammar.record(data, 0)[0]].rstrip(b"\r\n"))
            yield Records(data, count, line, unclosed)
            place, line = end, line + lines
        rest = held[place:] + rest


def whole_fields(line: bytes, delimiter: str) -> list[bytes]:
    """Fields of a line before the one whose quote is not closed."""
    return Grammar(delimiter, quotes=True).whole_fields(line)
