"""Divides row groups into portions of similar size, so that few row groups are read more than once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RowSpan:
    """Rows start .. stop - 1 of one file."""

    file: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def split_rows(groups_per_file: Sequence[Sequence[int]], rows: int) -> list[list[RowSpan]]:
    """groups_per_file[f]: rows of each row group of file f -> portions of at most `rows` rows, each a list of spans.

    A row group that fits into a portion stays whole; a larger one is split into near-equal parts. A file with more rows
    than a portion shares no portion with another file, so that one such file more does not shift all later portions.
    """
    portions: list[list[RowSpan]] = []
    open_portion: list[RowSpan] = []
    for file, groups in enumerate(groups_per_file):
        alone = sum(groups) > rows
        if alone and open_portion:
            portions, open_portion = [*portions, open_portion], []
        for span in _units(file, groups, rows):
            if open_portion and sum(part.rows for part in open_portion) + span.rows > rows:
                portions.append(open_portion)
                open_portion = []
            open_portion = _joined(open_portion, span)
        if alone and open_portion:
            portions.append(open_portion)
            open_portion = []
    return [*portions, open_portion] if open_portion else portions


def _units(file: int, groups: Iterable[int], rows: int) -> Iterator[RowSpan]:
    start = 0
    for size in groups:
        parts = -(-size // rows)
        for part in range(parts):
            yield RowSpan(file, start + size * part // parts, start + size * (part + 1) // parts)
        start += size


def _joined(spans: list[RowSpan], span: RowSpan) -> list[RowSpan]:
    if spans and spans[-1].file == span.file and spans[-1].stop == span.start:
        return [*spans[:-1], RowSpan(span.file, spans[-1].start, span.stop)]
    return [*spans, span]


def overlaps(groups: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(group, first, last) for rows start .. stop - 1 of a file: rows first .. last - 1 of each of its row groups."""
    begin = 0
    for group, size in enumerate(groups):
        first, last = max(start, begin) - begin, min(stop, begin + size) - begin
        if first < last:
            yield group, first, last
        begin += size
