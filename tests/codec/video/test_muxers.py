"""Healthy videos whose containers are unusual: fragments, offsets, several streams, side data, times of decoding."""

from __future__ import annotations

import io
import itertools
from fractions import Fraction
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
