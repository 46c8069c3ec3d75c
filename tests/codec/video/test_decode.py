from __future__ import annotations

import contextlib
import gc
import resource
import time
from typing import Any

import av
import pytest

from curate.codec.video import exact
from curate.codec.video import source as sources
from curate.codec.video.decode import Picture, Tally, pictures
from curate.codec.video.motion import export_vectors
from curate.codec.video.probe import probe
from curate.codec.video.source import Budget, opened
from curate.core.errors import Undecodable
from curate.core.reader import Reader
from tests.codec.video.make_videos import (
    KINDS,
    Kind,
    made,
    not_coded,
    number_of,
    numbered,
    patched,
    plain,
    sound,
    timeless,
    turned,
    two_sizes,
    video,
)
from tests.codec.video.test_containers import HOSTILE


def seen(data: bytes, budget: Budget | None = None) -> tuple[Tally, list[Picture]]:
    tally = Tally()
    with opened(Reader(data), budget) as source:
        return tally, list(pictures(source, tally))


def reason(data: bytes) -> str:
    try:
        found = seen(data)[0].reason()
    except Undecodable as error:
        found = error
    return found.reason if found else ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_video_has_no_reason(kind: str) -> None:
    tally, every = seen(video(kind))
    assert tally.reason() is None
    assert (tally.frames, tally.corrupt, tally.missing, tally.untimed, tally.sizes) == (60, 0, 0, 0, 0)
    assert tally.i_frames >= 1
    if KINDS[kind].ticks is None:
        assert tally.end_ms - every[0].ms == 2400


def test_damage_is_counted() -> None:
    data = bytearray(video("mp4 h264", 200))
    media = data.index(b"mdat")
    for place in range(media + 2000, media + 12_000, 97):
        data[place] ^= 0x55
    tally, _ = seen(bytes(data))
    assert tally.corrupt + tally.missing > 4
    assert (found := tally.reason()) is not None and found.reason == "corrupt"
    assert tally.reason(1.0) is None


def test_a_frame_that_is_not_coded_repeats_the_one_before() -> None:
    tally, every = seen(not_coded(range(5, 60, 12)))
    assert tally.missing == 0
    assert tally.reason() is None
    assert [one.ms for one in every] == [40 * n for n in range(60) if n % 12 != 5]


def test_a_side_has_a_limit() -> None:
    assert reason(plain(KINDS["avi mjpeg"], (16_386, 16))) == "too_many_pixels"


@pytest.mark.parametrize("kind", ["mp4 h264", "avi mpeg4"])
def test_a_cut_video_says_so(kind: str) -> None:
    data = video(kind, 200)
    if kind.startswith("mp4"):  # with its index before its frames
        end = data.rindex(b"moov") - 4
        moov, media = data[end:], data[data.index(b"mdat") - 4 : end]
        offsets, shift = moov.index(b"stco"), len(moov)
        while offsets >= 0:
            for number in range(int.from_bytes(moov[offsets + 8 : offsets + 12])):
                at = offsets + 12 + 4 * number
                moov = patched(moov, at, (int.from_bytes(moov[at : at + 4]) + shift).to_bytes(4))
            offsets = moov.find(b"stco", offsets + 4)
        data = data[: data.index(b"mdat") - 4] + moov + media
        assert reason(data) == ""
    tally, every = seen(data[: len(data) * 2 // 3])
    assert tally.truncated and 20 < len(every) < 200
    assert reason(data[: len(data) * 2 // 3]) == "truncated"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        *((data, "not_a_video") for data in HOSTILE.values()),
        (video("mp4 h264")[:1000], "truncated"),
        (b"\x1a\x45\xdf\xa3" + bytes(5000), "corrupt"),
        (b"OggS" + bytes(5000), "truncated"),
    ],
)
def test_bytes_of_anything_else_have_a_reason(data: bytes, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why in ("empty", "not_a_video"):
        monkeypatch.setattr(av, "open", None)  # never called
    for read in (seen, lambda data: probe(Reader(data))):
        with pytest.raises(Undecodable) as caught:
            read(data)
        assert caught.value.reason == why


def test_sound_alone_is_not_a_video() -> None:
    assert reason(sound()) == "no_video_stream"


def test_other_codecs_are_not_decoded() -> None:
    assert reason(made(Kind("avi", "huffyuv", "yuv422p"), range(3))) == "unsupported"
    assert reason(made(Kind("avi", "zmbv", "bgr0"), range(3))) == "unsupported"


def test_times_that_do_not_ascend_are_a_reason() -> None:
    assert reason(timeless()) == "no_timestamps"
    with pytest.raises(Undecodable) as caught:
        list(exact.shown(Reader(timeless()), [500]))
    assert caught.value.reason == "no_timestamps"


def test_a_size_that_changes_is_counted() -> None:
    tally, every = seen(two_sizes())
    assert (tally.sizes, tally.reason()) == (1, None)
    assert [picture.planes.size for picture in every] == [(96, 64)] * 10 + [(128, 96)] * 10


def test_large_frames_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = made(Kind("mp4", "mpeg4", size=(640, 480)), range(2))
    with pytest.raises(Undecodable) as caught:
        seen(data, Budget(max_pixels=640 * 479))
    assert caught.value.reason == "too_many_pixels"
    assert len(seen(data, Budget(max_pixels=640 * 480))[1]) == 2


def test_a_header_with_a_wrong_size_allocates_nothing() -> None:
    data = video("avi mjpeg")
    at = data.index(b"strf") + 8 + 4
    for side in (9_000, 30_000):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert reason(patched(data, at, side.to_bytes(4, "little") * 2)) in ("", "corrupt")  # frames have their size
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


def test_too_many_frames_are_a_reason() -> None:
    with pytest.raises(Undecodable) as caught:
        seen(video("mp4 h264"), Budget(max_frames=59))
    assert caught.value.reason == "too_many_frames"


def test_frames_are_too_many_for_the_time_that_they_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BURST_FRAMES", 30)
    monkeypatch.setattr(sources, "FRAMES_PER_SECOND", 20)
    seen(video("mp4 h264"))  # 60 in 2.4 s
    monkeypatch.setattr(sources, "FRAMES_PER_SECOND", 10)
    with pytest.raises(Undecodable, match="too_many_frames"):
        seen(video("mp4 h264"))
    jump = Kind("matroska", "ffv1", ticks=lambda n: n + (n > 5) * 10**6)
    with pytest.raises(Undecodable, match="too_many_frames"):  # a jump in time does not allow many
        seen(made(jump, range(60)))


@pytest.mark.parametrize(("frame", "pixel"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_frames_may_take_time_by_their_pixels(frame: float, pixel: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BASE_SECONDS", 0.0)
    monkeypatch.setattr(sources, "FRAME_SECONDS", frame)
    monkeypatch.setattr(sources, "PIXEL_SECONDS", pixel)
    budget = Budget(began=time.process_time() - 1.0)
    budget.spend([av.VideoFrame(96, 64, "yuv420p")] * 2) if frame or pixel else None
    with contextlib.nullcontext() if frame or pixel else pytest.raises(Undecodable, match="too_slow"):
        budget.spend()


def test_what_the_header_says() -> None:
    found: Any = probe(Reader(turned(video("mp4 h264"), 90)))
    assert (found.width, found.height, found.rotation) == (64, 96, 270)
    assert (found.format, found.codec, found.pixels) == ("mp4", "h264", "yuv420p")
    assert (found.duration_ms, found.fps, found.frames, found.has_audio) == (2400, 25.0, 60, True)
    assert not probe(Reader(video("mp4 hevc"))).has_audio
    assert probe(Reader(video("mkv ffv1"))).frames is None


def test_the_numbers_of_frames_can_be_read() -> None:
    assert [number_of(numbered(number)) for number in (0, 1, 4711, 65_535)] == [0, 1, 4711, 65_535]


def test_a_frame_is_gone_when_it_was_shown() -> None:
    """FFmpeg would otherwise take other buffers, and show something else in damaged frames."""
    gc.collect()
    gc.disable()
    try:
        with opened(Reader(video("mp4 h264"))) as source:
            export_vectors(source.stream.codec_context)
            kept = list(pictures(source))
        assert any(len(picture.vectors) for picture in kept)
        assert not [one for one in gc.get_objects() if type(one) is av.VideoFrame and one.width]
        assert all(picture.vectors.base is None for picture in kept)
    finally:
        gc.enable()
