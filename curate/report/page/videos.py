"""Section about videos: classes of length and motion, what became of their time, and their cuts and clips."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from curate.report.page.images import Gallery, ImageCard, length
from curate.report.survey.videos import DURATION, FATES, MEASURES, VideoTimes

TIMELINES = 8
MARKS = 500
"""Cuts, clips and black stretches that a timeline draws of each."""
MEANINGS = {
    "kept": "in clips",
    "short": "shots that are too short",
    "trimmed": "cut off at both ends of clips",
    "black": "black stretches",
    "rejected": "shots that are too long",
}


@dataclass(frozen=True)
class Class:
    name: str
    all: int
    kept: int
    widths: tuple[float, float]
    """Percent of the largest class."""


@dataclass(frozen=True)
class Part:
    """Time that became something."""

    name: str
    meaning: str
    seconds: float
    width: float


@dataclass(frozen=True)
class Bar:
    """A stretch of a timeline, in percent of its length."""

    style: str
    start: float
    width: float
    tooltip: str


@dataclass(frozen=True)
class Timeline:
    card: ImageCard
    name: str
    bars: list[Bar]
    cuts: list[tuple[float, str]]
    text: str


@dataclass(frozen=True)
class Videos:
    seconds: float
    kept_seconds: float
    measures: list[tuple[str, list[Class]]]
    parts: list[Part]
    """They add up to `divided` seconds."""
    divided: float
    timelines: list[Timeline]


def videos(times: VideoTimes, rows: Sequence[Mapping[str, Any]], gallery: Gallery) -> Videos | None:
    """rows: videos that pass. None if nothing has a duration."""
    if not times.ms:
        return None
    divided = times.fates.total()
    most = max(times.fates.values(), default=0) or 1
    lost = times.fates if divided else {}
    return Videos(
        seconds=times.ms / 1000,
        kept_seconds=(times.ms - times.lost_ms.total()) / 1000,
        measures=[(MEASURES[name].title, _classes(name, times)) for name in MEASURES if _any(name, times)],
        parts=[
            Part(fate, MEANINGS[fate], lost[fate] / 1000, 100 * lost[fate] / most) for fate in FATES if fate in lost
        ],
        divided=divided / 1000,
        timelines=[_timeline(row, gallery) for row in rows if _eventful(row)][:TIMELINES],
    )


def _eventful(row: Mapping[str, Any]) -> bool:
    divided = row.get("clips_ms") is not None
    return bool(row.get(DURATION)) and (divided or bool(row.get("black_ms")) or bool(_cuts(row)))


def _any(name: str, times: VideoTimes) -> bool:
    return name in times.classes and bool(times.classes[name].any())


def _classes(name: str, times: VideoTimes) -> list[Class]:
    """From the first to the last class that has a video."""
    every, kept = times.classes[name].tolist()
    held = [place for place, count in enumerate(every) if count]
    return [
        Class(MEASURES[name].names[place], every[place], kept[place], _widths(every[place], kept[place], max(every)))
        for place in range(held[0], held[-1] + 1)
    ]


def _widths(every: int, kept: int, most: int) -> tuple[float, float]:
    return 100 * every / most, 100 * kept / most


def _timeline(row: Mapping[str, Any], gallery: Gallery) -> Timeline:
    end = row[DURATION]
    cuts, black, clips = _cuts(row), _pairs(row.get("black_ms")), _pairs(row.get("clips_ms"))
    shots = _shots(end, cuts, black)
    bars = [
        Bar(style, 100 * start / end, 100 * (stop - start) / end, f"{style}: {_second(start, stop)}")
        for style, some in (("shot", shots), ("black", black), ("clip", clips))
        for start, stop in some[:MARKS]
    ]
    marks = [(100 * ms / end, f"cut: {_second(ms)}") for ms in cuts[:MARKS]]
    counts = [_count(len(shots), "shot"), _count(len(clips), "clip") if row.get("clips_ms") is not None else ""]
    counts.append(_count(len(black), "black stretch") if black else "")
    text = f"{length(row)}: {', '.join(filter(None, counts))}"
    return Timeline(gallery.card(row), str(row.get("source_id") or row["key"]), bars, marks, text)


def _cuts(row: Mapping[str, Any]) -> list[int]:
    return [ms for ms in row.get("cuts_ms") or () if 0 < ms < row[DURATION]]


def _shots(end: int, cuts: Sequence[int], black: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches between cuts and black, which is in order and does not overlap."""
    edges = sorted({0, end, *cuts, *(ms for stretch in black for ms in stretch if ms <= end)})
    starts = [start for start, _ in black]

    def light(ms: int) -> bool:
        place = bisect_right(starts, ms) - 1
        return place < 0 or ms >= black[place][1]

    return [(start, stop) for start, stop in pairwise(edges) if light(start)]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 'es' if what.endswith('h') else 's'}"


def _pairs(flat: Sequence[int] | None) -> list[tuple[int, int]]:
    return list(zip((flat or [])[::2], (flat or [])[1::2], strict=False))


def _second(*ms: int) -> str:
    return " to ".join(f"{one / 1000:,.2f}" for one in ms) + " s"
