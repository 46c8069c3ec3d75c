from __future__ import annotations

import random
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.codec.video.containers import COPYABLE, REASONS
from curate.codec.video.decode import Tally, pictures
from curate.codec.video.extract import AUDIO, extract
from curate.codec.video.probe import probe
from curate.codec.video.source import opened
from curate.core.errors import Undecodable
from curate.core.reader import Reader
from tests.codec.video.exactness import at, linear
from tests.codec.video.hostile import damaged
from tests.codec.video.make_videos import B_FRAMES, KINDS, Kind, edited, made, number_of, turned, video

SPANS = ((0, 400), (500, 1300), (990, 1010), (1720, 2400))
OTHERS = ("ffv1", "gray", "rgb", "vp8", "msm", "flv1", "wmv", "prores")
COPIED = [kind for kind in KINDS if not any(word in kind for word in OTHERS)]
REFUSED = ("mp4 h264 refresh", "ps mpeg1")


def shown(data: bytes) -> list[tuple[int, int]]:
    """(time, number) of each frame."""
    tally = Tally()
    with opened(Reader(data)) as source:
        found = [(picture.ms, number_of(picture.planes.rgb())) for picture in pictures(source, tally)]
    assert tally.corrupt == tally.missing == tally.untimed == 0
    return found


def expected(whole: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """What a copy of the span shows."""
    ends = [*(ms for ms, _ in whole[1:]), 10**9]
    inside = [frame for frame, end in zip(whole, ends, strict=True) if frame[0] < stop and end > start]
    times = [0, *(ms - start for ms, _ in inside[1:])]
    return list(zip(times, (number for _, number in inside), strict=True))


def copied(data: bytes, start: int, stop: int) -> bytes:
    return extract(Reader(data), {"start_ms": start, "stop_ms": stop})


def copied_or_reason(data: bytes, start: int, stop: int) -> bytes | str:
    try:
        return copied(data, start, stop)
    except Undecodable as error:
        return error.reason


@pytest.mark.parametrize("kind", COPIED)
def test_a_copy_shows_the_frames_of_its_span(kind: str) -> None:
    whole = shown(video(kind))
    for start, stop in SPANS:
        copy = copied_or_reason(video(kind), start, stop)
        if isinstance(copy, str):
            assert (kind in REFUSED, copy) == (True, "not_copyable")
            continue
        assert shown(copy) == expected(whole, start, stop)
    assert copied_or_reason(video(kind), *SPANS[1]) == copied_or_reason(video(kind), *SPANS[1])


RATES = (Fraction(24000, 1001), 24, 25, Fraction(30000, 1001), 30, 50, Fraction(60000, 1001), None)
AT_RATES = [
    pytest.param(
        rate, container, id=f"{container} {float(rate):.2f}" if rate else f"{container} variable",
        marks=[] if container == "mp4" and rate in (24, 30) else pytest.mark.long,
    )
    for rate in RATES
    for container in ("mp4", "matroska")
]  # fmt: skip


@cache
def at_rate(rate: Fraction | None, container: str) -> bytes:
    ticks = None if rate else lambda number: number * 33 + number % 5 * 4
    kind = Kind(container, "libx264", options=B_FRAMES, ticks=ticks, rate=Fraction(rate or 25))
    return made(kind, range(60))


@pytest.mark.parametrize(("rate", "container"), AT_RATES)
@given(
    first=st.integers(0, 58), frames=st.integers(1, 59), early=st.sampled_from([-1, 0, 1]),
    late=st.sampled_from([-1, 0, 1]),
)  # fmt: skip
def test_a_copy_exists_at_any_rate_and_shows_exactly_its_span(
    rate: Fraction | None, container: str, first: int, frames: int, early: int, late: int
) -> None:
    """Spans begin and end with a frame, or a millisecond before or after."""
    data = at_rate(rate, container)
    whole = shown(data)
    start = max(0, whole[first][0] + early)
    stop = max(start + 1, whole[min(first + frames, len(whole) - 1)][0] + late)
    assert shown(copied(data, start, stop)) == expected(whole, start, stop)


@pytest.mark.parametrize("kind", ["mp4 h264", "mp4 h264 vfr", "mp4 vp9", "mkv h264", "mkv slides"])
def test_a_copy_shows_at_each_time_what_its_source_does(kind: str) -> None:
    """Spans neither begin nor end with a frame."""
    slides = Kind("matroska", "libx264", options=B_FRAMES | {"bf": "0"}, ticks=lambda number: number * 4500)
    data = made(slides, range(5)) if kind == "mkv slides" else video(kind)
    rng, every = random.Random(kind), linear(data)
    for _ in range(5):
        start = rng.randrange(every[-1].ms)
        stop = min(start + rng.choice((rng.randrange(1, 50), rng.randrange(50, 9000))), every[-1].ms + 1)
        copy = copied(data, start, stop)
        found = linear(copy, tally := Tally())
        assert (tally.end_ms, probe(Reader(copy)).duration_ms) == (stop - start, stop - start)
        for ms in range(stop - start):
            shows, shown = at(found, ms), at(every, start + ms)
            assert shows.ms == max(0, shown.ms - start)
            assert np.array_equal(shows.planes.planes[0], shown.planes.planes[0])


def test_an_mp4_whose_edit_list_has_several_parts_is_not_copied() -> None:
    data = edited(video("mp4 h264"), (800, 12_800), (800, 1024))
    assert copied_or_reason(data, 100, 900) == "not_copyable"


@pytest.mark.parametrize("kind", ["mp4 h264", "mkv h264", "avi mjpeg", "ts h264"])
@pytest.mark.parametrize("start", [2450, 10**8])
def test_a_span_after_the_end_is_rejected(kind: str, start: int) -> None:
    assert copied_or_reason(video(kind), start, start + 900) == "bad_span"


@pytest.mark.parametrize("kind", ["mp4 h264", "mkv h264", "ts h264"])
def test_the_sound_is_included(kind: str) -> None:
    copy = probe(Reader(copied(video(kind), 500, 1300)))
    assert copy.has_audio
    assert copy.duration_ms == pytest.approx(800, abs=40)


def test_a_copy_turns_as_its_source() -> None:
    found = probe(Reader(copied(turned(video("mp4 h264"), 90), 500, 1300)))
    assert (found.rotation, found.width, found.height) == (270, 64, 96)


@pytest.mark.parametrize("kind", [kind for kind in COPIED if kind not in REFUSED])
def test_a_copy_of_a_copy(kind: str) -> None:
    """What the first edit list hides stays hidden, also before the first frame."""
    once = copied(video(kind), 500, 1300)
    whole = shown(once)
    for start, stop in ((0, 300), (300, 700)):
        twice = copied_or_reason(once, start, stop)
        ends = [*(ms for ms, _ in whole[1:]), 800]
        inside = [frame for frame, end in zip(whole, ends, strict=True) if frame[0] < stop and end > start]
        assert not isinstance(twice, str), twice
        assert [number for _, number in shown(twice)] == [number for _, number in inside]


@pytest.mark.parametrize(
    ("kind", "span", "why"),
    [
        ("webm vp8", {"start_ms": 0, "stop_ms": 400}, "not_copyable"),
        ("mp4 h264", {"start_ms": 400, "stop_ms": 400}, "bad_span"),
        ("mp4 h264", {"start_ms": -1, "stop_ms": 400}, "bad_span"),
        ("mp4 h264", {"start_ms": 0.5, "stop_ms": 400}, "bad_span"),
        ("mp4 h264", {"frame": 3}, "bad_span"),
        ("mp4 h264", {}, "bad_span"),
    ],
)
def test_what_cannot_be_copied_has_a_reason(kind: str, span: dict[str, Any], why: str) -> None:
    with pytest.raises(Undecodable) as caught:
        extract(Reader(video(kind)), span)
    assert caught.value.reason == why


@pytest.mark.long
def test_damage_is_copied_or_has_a_reason() -> None:
    for kind in COPIED:
        for number in range(3):
            found = copied_or_reason(damaged(kind, number), 500, 1300)
            assert found in REASONS if isinstance(found, str) else found


def test_codecs_are_known() -> None:
    assert not set(COPYABLE) & set(AUDIO)
