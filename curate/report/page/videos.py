"""Section about videos: classes of length and motion, what became of their time, and their cuts and clips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from curate.html.numbers import duration
from curate.report.page.images import Gallery, ImageCard
from curate.report.survey.videos import DURATION, FATES, MEASURES, VideoTimes

TIMELINES = 8
MARKS = 500
"""Cuts, clips and black stretches that a timeline draws of each."""
MEANINGS = {
    "kept": "in a clip",
    "short": "of shots that are too short",
    "trimmed": "cut off at both ends of clips",
    "black": "black",
    "rejected": "of shots that are too long",
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
    """Of divided videos; they add up to `divided` seconds."""
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
        parts=[Part(fate, MEANINGS[fate], lost[fate] / 1000, 100 * lost[fate] / most) for fate in FATES if fate in lost],
        divided=divided / 1000,
        timelines=[_timeline(row, gallery) for row in rows if row.get(DURATION) and row.get("cuts_ms") is not None][
            :TIMELINES
        ],
    )


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
    end, cuts = row[DURATION], [ms for ms in row["cuts_ms"] if 0 < ms < row[DURATION]]
    shots = list(pairwise([0, *cuts, end]))
    black, clips = (_pairs(row.get(name)) for name in ("black_ms", "clips_ms"))
    bars = [
        Bar(style, 100 * start / end, 100 * (stop - start) / end, f"{what} {_second(start)} to {_second(stop)} s")
        for what, style, some in (("Shot", "shot", shots), ("Black", "black", black), ("Clip", "clip", clips))
        for start, stop in some[:MARKS]
    ]
    counts = [(len(shots), "shot"), (len(clips), "clip"), (len(black), "black stretch")]
    text = ", ".join(
        f"{count:,} {what}{'' if count == 1 else 'es' if what[-1] == 'h' else 's'}"
        for count, what in counts
        if count or (what == "clip" and row.get("clips_ms") is not None)
    )
    card = gallery.card(row)
    name = str(row.get("source_id") or row["key"])
    marks = [(100 * ms / end, f"Cut at {_second(ms)} s") for ms in cuts[:MARKS]]
    return Timeline(card, name, bars, marks, f"{duration(end / 1000)}: {text}")


def _pairs(flat: Sequence[int] | None) -> list[tuple[int, int]]:
    return list(zip((flat or [])[::2], (flat or [])[1::2], strict=False))


def _second(ms: int) -> str:
    return f"{ms / 1000:,.2f}"
