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
    "kept": "in clips", "short": "shots that are too short", "trimmed": "cut off at both ends of clips",
    "black": "black stretches", "rejected": "shots that are too long",
}  # fmt: skip


@dataclass(frozen=True)
class Timeline:
    card: ImageCard
    name: str
    text: str
    bars: list[tuple[str, float, float, str]]
    """(style, start, width, tooltip), in percent of the video."""
    cuts: list[tuple[float, str]]


@dataclass(frozen=True)
class Videos:
    seconds: float
    kept_seconds: float
    measures: list[tuple[str, list[tuple[str, int, int, int]]]]
    """Title, and (class, videos, those that pass, videos of the largest class)."""
    parts: list[tuple[str, str, float, float]]
    """(part, its meaning, seconds, percent of the largest); they add up to `divided` seconds."""
    divided: float
    timelines: list[Timeline]


def videos(times: VideoTimes, rows: Sequence[Mapping[str, Any]], gallery: Gallery) -> Videos | None:
    """rows: videos that pass. None if nothing has a duration."""
    if not times.ms:
        return None
    ms, divided = times.fates, times.fates.total()
    most = max(ms.values(), default=0) or 1
    return Videos(
        seconds=times.ms / 1000,
        kept_seconds=(times.ms - times.lost_ms.total()) / 1000,
        measures=[(MEASURES[name].title, _classes(name, times)) for name in MEASURES if name in times.classes],
        parts=[(fate, MEANINGS[fate], ms[fate] / 1000, 100 * ms[fate] / most) for fate in FATES if divided],
        divided=divided / 1000,
        timelines=[_timeline(row, gallery) for row in rows if _eventful(row)][:TIMELINES],
    )


def _classes(name: str, times: VideoTimes) -> list[tuple[str, int, int, int]]:
    """From the first to the last class that has a video."""
    every, kept = times.classes[name].tolist()
    held = [place for place, count in enumerate(every) if count]
    places = range(held[0], held[-1] + 1) if held else ()
    return [(MEASURES[name].names[place], every[place], kept[place], max(every)) for place in places]


def _eventful(row: Mapping[str, Any]) -> bool:
    divided = row.get("clips_ms") is not None
    return bool(row.get(DURATION)) and (divided or bool(row.get("black_ms")) or bool(_cuts(row)))


def _timeline(row: Mapping[str, Any], gallery: Gallery) -> Timeline:
    end, name = row[DURATION], str(row.get("source_id") or row["key"])
    cuts, black, clips = _cuts(row), _pairs(row.get("black_ms")), _pairs(row.get("clips_ms"))
    shots = _shots(end, cuts, black)
    bars = [
        (style, 100 * start / end, 100 * (stop - start) / end, f"{style}: {start / 1000:,.2f} to {stop / 1000:,.2f} s")
        for style, some in (("shot", shots), ("black", black), ("clip", clips))
        for start, stop in some[:MARKS]
    ]
    counts = [_count(len(shots), "shot"), _count(len(clips), "clip") if row.get("clips_ms") is not None else ""]
    counts.append(_count(len(black), "black stretch", "es") if black else "")
    marks = [(100 * ms / end, f"cut: {ms / 1000:,.2f} s") for ms in cuts[:MARKS]]
    return Timeline(gallery.card(row), name, f"{length(row)}: {', '.join(filter(None, counts))}", bars, marks)


def _count(number: int, what: str, many: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else many}"


def _cuts(row: Mapping[str, Any]) -> list[int]:
    return [ms for ms in row.get("cuts_ms") or () if 0 < ms < row[DURATION]]


def _pairs(flat: Sequence[int] | None) -> list[tuple[int, int]]:
    return list(zip((flat or [])[::2], (flat or [])[1::2], strict=False))


def _shots(end: int, cuts: Sequence[int], black: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches between cuts and black, which is in order and does not overlap."""
    edges = sorted({0, end, *cuts, *(ms for stretch in black for ms in stretch if ms <= end)})
    ends = [0, *(stop for _, stop in black)]
    places = [bisect_right(black, (start, 1 << 62)) for start, _ in pairwise(edges)]
    return [shot for shot, place in zip(pairwise(edges), places, strict=True) if shot[0] >= ends[place]]
