"""Row groups -> portions of about the same number of rows, so that no row group is read more often than it must be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Rows start..stop of one file."""

    file: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def cut(groups_per_file: Sequence[Sequence[int]], rows: int) -> list[list[Span]]:
    """groups_per_file[f]: rows of each row group of file f -> portions of at most `rows` rows, each a list of spans.

    Row groups stay whole where they fit. One that does not is cut into near-equal parts. A portion never spans the end
    of a file that was cut itself, so that another such file does not move the portions of those after it.
    """
    portions: list[list[Span]] = []
    open_portion: list[Span] = []
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


def _units(file: int, groups: Iterable[int], rows: int) -> Iterator[Span]:
    start = 0
    for size in groups:
        parts = -(-size // rows)
        for part in range(parts):
            yield Span(file, start + size * part // parts, start + size * (part + 1) // parts)
        start += size


def _joined(spans: list[Span], span: Span) -> list[Span]:
    if spans and spans[-1].file == span.file and spans[-1].stop == span.start:
        return [*spans[:-1], Span(span.file, spans[-1].start, span.stop)]
    return [*spans, span]


def overlaps(groups: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(group, first, last): which rows of which row groups make up rows start..stop of a file."""
    begin = 0
    for group, size in enumerate(groups):
        first, last = max(start, begin) - begin, min(stop, begin + size) - begin
        if first < last:
            yield group, first, last
        begin += size
