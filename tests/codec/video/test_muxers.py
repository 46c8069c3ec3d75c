"""Healthy videos whose containers are unusual: fragments, offsets, several streams, side data, times of decoding."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from curate.codec.video import motion, source
from curate.codec.video.containers import REASONS
from curate.codec.video.decode import Picture, Tally, pictures
from curate.codec.video.extract import extract
from curate.codec.video.probe import probe
from curate.codec.video.source import opened
from curate.core.errors import Undecodable
from curate.core.reader import Reader
from tests.codec.video.make_videos import B_FRAMES, Kind, made, number_of, numbered

H264 = Kind("mp4", "libx264", options=B_FRAMES)
FRAGMENTS = ("frag_keyframe+empty_moov", "frag_keyframe+delay_moov+dash", "frag_keyframe+delay_moov+skip_trailer")


def passed(data: bytes) -> tuple[list[Picture], Tally]:
    tally = Tally()
    with opened(Reader(data)) as video:
        return list(pictures(video, tally)), tally


@pytest.mark.parametrize("flags", FRAGMENTS)
@pytest.mark.parametrize("offset_ms", [0, 3_892_000])
def test_fragments_last_from_their_first_frame_to_the_end_of_the_last(flags: str, offset_ms: int) -> None:
    data = made(H264, range(60), offset_ms, movflags=flags)
    found, tally = passed(data)
    assert (len(found), tally.end_ms, tally.reason()) == (60, 2400, None)
    assert probe(Reader(data)).duration_ms == 2400


@pytest.mark.parametrize("offset_ms", [0, 900, 100_000])
def test_matroska_lasts_from_its_first_frame(offset_ms: int) -> None:
    duration = probe(Reader(made(Kind("matroska", "libx264", options=B_FRAMES), range(60), offset_ms))).duration_ms
    assert duration is not None and abs(duration - 2400) <= 80  # its header is in whole milliseconds of all streams


@pytest.mark.parametrize("container", ["avi", "asf"])
def test_frames_with_times_of_decoding_are_shown_in_order_and_not_copied(container: str) -> None:
    data = made(Kind(container, "libx264", options=B_FRAMES), range(60))
    found, tally = passed(data)
    numbers = [number_of(one.planes.rgb()) for one in found]
    assert tally.reason() is None and len(numbers) >= 58 and numbers == sorted(numbers)
    steps = np.diff([one.ms for one in found])
    assert np.median(steps) == 40 and steps.max() <= 120
    with pytest.raises(Undecodable, match=r"not_copyable: the times of this .* are those of decoding"):
        extract(Reader(data), {"start_ms": 400, "stop_ms": 1600})


@pytest.mark.parametrize("container", ["mp4", "mpegts"])
def test_a_damaged_first_key_frame_and_what_depends_on_it_are_missing(container: str) -> None:
    data = bytearray(made(Kind(container, "libx264", options=B_FRAMES | {"g": "12"}), range(36)))
    with av.open(io.BytesIO(data)) as opened_by_hand:
        first, second = itertools.islice((packet.pos for packet in opened_by_hand.demux(video=0)), 2)
    assert first is not None and second is not None
    for place in range(first, second):
        if container == "mp4" or (place - first) % 188 > 60:  # the transport's headers stay
            data[place] = 0
    _, tally = passed(bytes(data))
    assert tally.missing + tally.corrupt >= 3
    reason = tally.reason()
    assert reason is not None and reason.reason == "corrupt"


def with_exif(number: int) -> bytes:
    exif, sink = Image.Exif(), io.BytesIO()
    exif[0x010E] = "a phone"
    Image.fromarray(numbered(number)).save(sink, "JPEG", exif=exif.tobytes(), quality=95)
    return sink.getvalue()


def test_side_data_that_the_library_does_not_know_is_not_damage() -> None:
    """JPEGs of a camera have EXIF, spatial videos have views: PyAV names neither."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mov") as output:
        stream: Any = output.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuvj420p"
        for number in range(10):
            packet = av.Packet(with_exif(number))
            packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, 25), True
            packet.pts = packet.dts = number
            output.mux(packet)
    found, tally = passed(sink.getvalue())
    assert [number_of(one.planes.rgb()) for one in found] == list(range(10)) and tally.reason() is None


def test_an_error_of_the_library_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(frame: object) -> None:
        raise ValueError("32 is not a valid Type")

    monkeypatch.setattr(motion, "SideDataContainer", lambda frame: fails(frame))
    monkeypatch.setattr(source.Source, "ms", lambda self, ticks: fails(ticks))
    with pytest.raises(Undecodable) as caught:
        passed(made(H264, range(3)))
    assert caught.value.reason == "library_error" and "library_error" in REASONS


@pytest.mark.parametrize(("default", "shown"), [(None, 1), (0, 0), (1, 1)])
def test_the_stream_that_players_show_is_taken(default: int | None, shown: int) -> None:
    """A small and a large one: the default is shown, else the large one."""
    sink = io.BytesIO()
    sizes = ((96, 64), (192, 128))
    with av.open(sink, "w", format="matroska") as output:
        streams: list[Any] = []
        for place, (width, height) in enumerate(sizes):
            one: Any = output.add_stream("libx264", rate=25)
            one.width, one.height, one.pix_fmt = width, height, "yuv420p"
            one.disposition = av.stream.Disposition.default if place == default else 0
            streams.append(one)
        for number in range(10):
            for one, (width, height) in zip(streams, sizes, strict=True):
                output.mux(one.encode(av.VideoFrame.from_ndarray(numbered(number, width, height))))
        for one in streams:
            output.mux(one.encode(None))
    found = probe(Reader(sink.getvalue()))
    assert (found.width, found.height) == sizes[shown]


def test_a_still_image_beside_a_video_is_not_shown() -> None:
    """Motion photos have their large image as a track of one frame."""
    sink = io.BytesIO()
    sizes = ((96, 64), (192, 128))
    with av.open(sink, "w", format="mp4") as output:
        streams: list[Any] = []
        for width, height in sizes:
            one: Any = output.add_stream("libx264", rate=25)
            one.width, one.height, one.pix_fmt, one.disposition = (
                width,
                height,
                "yuv420p",
                av.stream.Disposition.default,
            )
            streams.append(one)
        for number in range(10):
            for one, (width, height) in list(zip(streams, sizes, strict=True))[: 1 if number else 2]:
                output.mux(one.encode(av.VideoFrame.from_ndarray(numbered(number, width, height))))
        for one in streams:
            output.mux(one.encode(None))
    found = probe(Reader(sink.getvalue()))
    assert (found.width, found.height) == sizes[0]


def with_hidden_packets(count: int) -> bytes:
    """VP9 with hidden frames in separate packets: a copy of each key frame, which the last 15 of 30 frames show."""
    options = {"g": "30", "deadline": "realtime", "cpu-used": "8"}
    given, sink = io.BytesIO(made(Kind("webm", "libvpx-vp9", options=options), range(count))), io.BytesIO()
    with av.open(given) as container, av.open(sink, "w", format="webm", options={"fflags": "-autobsf"}) as output:
        copy, key = output.add_stream_from_template(container.streams.video[0]), b""
        for place, packet in enumerate(container.demux(video=0)):
            if packet.pts is None:
                continue
            key = bytes(packet) if packet.is_keyframe else key
            hidden = (
                [(packet.pts - 1, bytes([key[0] & ~2]) + key[1:])] if place % 30 == 15 else []
            )  # without show_frame
            for time, data in [
                *hidden,
                (packet.pts, b"\x88" if place % 30 >= 15 else bytes(packet)),
            ]:  # show_existing_frame
                part = av.Packet(data)
                part.pts = part.dts = time
                part.stream, part.time_base, part.is_keyframe = copy, packet.time_base, place % 30 == 0
                output.mux(part)
    return sink.getvalue()


def test_packets_of_hidden_frames_are_not_missing() -> None:
    data = with_hidden_packets(90)
    with av.open(io.BytesIO(data)) as given:
        assert sum(packet.pts is not None for packet in given.demux(video=0)) > 90
    found, tally = passed(data)
    assert (len(found), tally.missing, tally.reason()) == (90, 0, None)
    times = [one.ms for one in found]
    for start, stop in [(0, 400), (0, 1000), (times[30] + 3, 1700), (560, 1000)]:
        copied, tally = passed(extract(Reader(data), {"start_ms": start, "stop_ms": stop}))
        first = max(time for time in times if time <= start)
        expected = [max(0, time - start) for time in times if first <= time < stop]
        assert [one.ms for one in copied] == expected and tally.reason() is None
    for start, stop in [(700, 1100), (1000, 1100), (2000, 2300)]:  # they show again what an edit list hides
        with pytest.raises(Undecodable, match=r"not_copyable: the edit list"):
            extract(Reader(data), {"start_ms": start, "stop_ms": stop})


@pytest.mark.parametrize(("interlaced", "missing"), [(True, 0), (False, 10)])
def test_the_second_field_of_a_frame_is_not_missing(
    interlaced: bool, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As cameras write AVCHD; no encoder of FFmpeg does, so packets and frames stand for it."""
    monkeypatch.setattr(Picture, "of", lambda ms, frame: ms)
    packets = [
        SimpleNamespace(pts=time, duration=20, size=99, is_discard=False, is_keyframe=not time, is_corrupt=False)
        for time in range(0, 400, 20)
    ]

    def decoded(sent: Iterable[Any]) -> Iterator[tuple[Any, list[Any]]]:
        for place, packet in enumerate(sent):
            about = SimpleNamespace(
                pts=packet.pts - 20, dts=None, duration=20, interlaced_frame=interlaced, is_corrupt=False,
                pict_type=1, width=96, height=64,
            )  # fmt: skip
            yield packet, [about] if place % 2 else []

    stream = SimpleNamespace(
        average_rate=Fraction(25), time_base=Fraction(1, 1000), index_entries=[],
        codec_context=SimpleNamespace(framerate=Fraction(25)),
    )  # fmt: skip
    video: Any = SimpleNamespace(
        stream=stream, codec="h264", format="mpegts", cut=False, packets=lambda: packets, decoded=decoded,
        ms=lambda ticks: ticks, end_ms=lambda last, duration: last + duration,
    )  # fmt: skip
    tally = Tally()
    assert len(list(pictures(video, tally))) == 10 and tally.missing == missing


DAMAGED = {
    "interlaced": Kind("matroska", "libx264", options=B_FRAMES | {"x264-params": "tff=1"}),
    "mpeg2": Kind("matroska", "mpeg2video", options={"g": "12", "flags": "+ildct+ilme"}),
    "vp8": Kind("webm", "libvpx", options={"g": "30", "deadline": "realtime", "cpu-used": "8"}),
    "vp9": Kind("webm", "libvpx-vp9", options={"g": "30", "deadline": "realtime", "cpu-used": "8"}),
    "av1": Kind("matroska", "libsvtav1", options={"g": "30", "preset": "12"}),
    "mpeg4": Kind("matroska", "mpeg4", options={"g": "12"}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_packets_are_missing(name: str) -> None:
    """Zeroed, they look like those of hidden frames, or like half of an interlaced frame."""
    sink = io.BytesIO()
    with av.open(io.BytesIO(made(DAMAGED[name], range(60)))) as given, av.open(sink, "w", format="matroska") as output:
        copy = output.add_stream_from_template(given.streams.video[0], opaque=True)
        for place, packet in enumerate(one for one in given.demux(video=0) if one.size):
            data = bytes(packet)
            kept = 0 if name == "vp8" else 1
            part = av.Packet(data[:kept] + bytes(len(data) - kept) if place % 2 else data)
            part.pts, part.dts, part.time_base = packet.pts, packet.dts, packet.time_base
            part.is_keyframe, part.stream = packet.is_keyframe, copy
            output.mux(part)
    _, tally = passed(sink.getvalue())
    assert tally.missing + tally.corrupt >= 20
    assert tally.reason() is not None


@pytest.mark.parametrize("codec", ["mpeg2video", "mpeg4"])
@pytest.mark.parametrize("b_frames", ["0", "2"])
def test_old_codecs_are_copied_from_matroska(codec: str, b_frames: str) -> None:
    data = made(Kind("matroska", codec, options={"g": "12", "bf": b_frames}), range(80))
    times = [one.ms for one in passed(data)[0]]
    for start in range(0, 3000, 170):
        copied, tally = passed(extract(Reader(data), {"start_ms": start, "stop_ms": start + 200}))
        first = max(time for time in times if time <= start)
        expected = [max(0, time - start) for time in times if first <= time < start + 200]
        assert [one.ms for one in copied] == expected and tally.reason() is None
