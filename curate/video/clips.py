"""Divides a video into clips: every millisecond of it is kept in one clip, or has a reason why not.

Times are integer milliseconds and spans are half-open, so that spans compare exactly, their keys are stable, and the
ledger of a video adds up to its duration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal, NamedTuple, TypeAlias

from curate.core.errors import LedgerError, Reject

Fate: TypeAlias = Literal["kept", "short", "trimmed", "black", "rejected"]
FATES: tuple[Fate, ...] = ("kept", "short", "trimmed", "black", "rejected")
Range: TypeAlias = tuple[int, int]
"""(start, stop) in milliseconds, half-open."""
MOST_WINDOWS = 100_000
"""A video that would have more, by a header that may lie, is rejected."""


class Piece(NamedTuple):
    """A part of a video, and what becomes of it. A piece that is kept is a clip."""

    start_ms: int
    stop_ms: int
    fate: Fate

    @property
    def span(self) -> dict[str, int]:
        return {"start_ms": self.start_ms, "stop_ms": self.stop_ms}


@dataclass(frozen=True)
class Rules:
    """Which clips to make. `most_ms` is at least twice `least_ms`, so that no window of a long clip is too short."""

    least_ms: int = 2_000
    most_ms: int = 60_000
    trim_ms: int = 0
    """Removed at each end of a clip that is at a cut or at black, where frames may be mixed."""
    longer: Literal["windows", "reject"] = "windows"
    """What becomes of a clip longer than `most_ms`: the fewest windows of nearly equal lengths, or nothing."""


def divide(duration_ms: int, cuts_ms: Iterable[int], black_ms: Iterable[Range], rules: Rules) -> list[Piece]:
    """Pieces of a video in order, which cover it exactly.

    `black_ms` and `cuts_ms` may be in any order, overlap, or reach beyond the video. A shot is a stretch between cuts
    and black; one of which less than `least_ms` remains after trimming is `short` as a whole. Raises Reject with
    too_long.
    """
    if rules.longer == "windows":
        _count(duration_ms, rules.most_ms)
    pieces: list[Piece] = []
    cuts = sorted(set(cuts_ms))
    at = 0
    for start, stop in chain(_merged(black_ms, duration_ms), [(duration_ms, duration_ms)]):
        edges = [at, *(cut for cut in cuts if at < cut < start), start]
        for shot in pairwise(edges):
            if shot[0] < shot[1]:
                pieces += _shot(shot, duration_ms, rules)
        if start < stop:
            pieces.append(Piece(start, stop, "black"))
        at = stop
    return pieces


def windows(start_ms: int, stop_ms: int, most_ms: int) -> list[Range]:
    """The fewest consecutive ranges of at most `most_ms` that cover a range; their lengths differ by at most 1 ms.
    Raises Reject with too_long."""
    length = stop_ms - start_ms
    count = _count(length, most_ms)
    return list(pairwise(start_ms + length * number // count for number in range(count + 1)))


def ledger(duration_ms: int, pieces: Sequence[Piece]) -> dict[Fate, int]:
    """Milliseconds by fate. Raises LedgerError unless the pieces cover the video exactly, without gap or overlap."""
    at = 0
    for piece in pieces:
        if piece.start_ms != at or piece.stop_ms <= at:
            raise LedgerError(f"a piece of a video is {piece.start_ms} to {piece.stop_ms} ms; expected a start at {at}")
        at = piece.stop_ms
    if at != duration_ms:
        raise LedgerError(f"the pieces of a video end at {at} ms; expected its duration, {duration_ms}")
    return {fate: sum(p.stop_ms - p.start_ms for p in pieces if p.fate == fate) for fate in FATES}


def _count(length_ms: int, most_ms: int) -> int:
    count = -(-length_ms // most_ms)
    if count > MOST_WINDOWS:
        raise Reject("too_long", f"{length_ms:,} ms are {count:,} windows; at most {MOST_WINDOWS:,} are made")
    return count


def _shot(shot: Range, duration_ms: int, rules: Rules) -> Iterator[Piece]:
    start, stop = shot
    inner = start + rules.trim_ms * (start > 0), stop - rules.trim_ms * (stop < duration_ms)
    if inner[1] - inner[0] < max(1, rules.least_ms):
        yield Piece(start, stop, "short")
        return
    if start < inner[0]:
        yield Piece(start, inner[0], "trimmed")
    if rules.longer == "reject" and inner[1] - inner[0] > rules.most_ms:
        yield Piece(*inner, "rejected")
    else:
        yield from (Piece(*window, "kept") for window in windows(*inner, rules.most_ms))
    if inner[1] < stop:
        yield Piece(inner[1], stop, "trimmed")


def _merged(ranges: Iterable[Range], duration_ms: int) -> list[Range]:
    """The ranges within the video, sorted and disjoint."""
    merged: list[Range] = []
    for start, stop in sorted((max(0, start), min(stop, duration_ms)) for start, stop in ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        elif start < stop:
            merged.append((start, stop))
    return merged
