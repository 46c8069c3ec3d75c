"""Text of soft subtitle tracks."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import pytest

from curate.codec.video import limited, subtitles
from curate.codec.video.subtitles import text
from curate.core.errors import Undecodable
from curate.core.reader import Reader
from tests.codec.video.make_videos import numbered, video

Track = tuple[str, str, Sequence[bytes]]
"""FFmpeg's name of its format, its language, and its packets."""


def titled(container: str, *tracks: Track, codec: str = "mpeg4", frames: int = 10) -> bytes:
    """A video with subtitle tracks whose packets are written as they are."""
    sink = io.BytesIO()
    with av.open(sink, "w", format=container, options={"fflags": "+bitexact"}) as output:
        picture: Any = output.add_stream(codec, rate=25)
        picture.width, picture.height, picture.pix_fmt = 96, 64, "yuvj420p" if codec == "mjpeg" else "yuv420p"
        streams = []
        for name, language, _ in tracks:
            stream: Any = output.add_mux_stream(name)
            stream.time_base = Fraction(1, 1000)
            stream.metadata["language"] = language
            streams.append(stream)
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(numbered(number))
            frame.pts = number
            output.mux(picture.encode(frame))
        output.mux(picture.encode(None))
        for stream, (_, _, packets) in zip(streams, tracks, strict=True):
            for place, data in enumerate(packets):
                packet: Any = av.Packet(data)
                packet.stream, packet.time_base = stream, Fraction(1, 1000)
                packet.pts = packet.dts = 100 * place
                packet.duration = 50
                output.mux_one(packet)
    return sink.getvalue()


def mov(line: str, more: bytes = b"") -> bytes:
    data = line.encode()
    return len(data).to_bytes(2, "big") + data + more


STYLE = bytes.fromhex("00000016 7374796c 0001 0000 0005 0001 00 12 ffffffff".replace(" ", ""))


@pytest.mark.parametrize(
    ("container", "name", "packets", "expected"),
    [
        ("mp4", "mov_text", [mov("Good morning"), mov("Zoë,\nhello", STYLE)], "Good morning Zoë, hello"),
        ("matroska", "subrip", [b"<i>Good</i> <font color='red'>day", b"1 < 2 <3"], "Good day 1 < 2 <3"),
        ("matroska", "webvtt", [b"<v Ann>Good <00:00:01.000><c.loud>day</c>"], "Good day"),
        ("matroska", "ass", [rb"0,0,Default,,0,0,0,,Go{\i1}od, day\Nagain", rb"1,0,D,,0,0,0,,{\p1}m 0 0 l 9 9"],
         "Go od, day again"),
        ("matroska", "subrip",
         ["\ufeffa\x1b[2J\u202eb ne\u200cm so\xadft".encode() + b"\xff\x00", b"\n \r"],
         "a [2Jb ne\u200cm soft\ufffd"),
        ("matroska", "subrip", [], ""),
        ("matroska", "dvd_subtitle", [b"\x00\x04ab"], None),
    ],
)  # fmt: skip
def test_text_of_each_format(container: str, name: str, packets: list[bytes], expected: str | None) -> None:
    assert limited.inspect(titled(container, (name, "eng", packets)), 1000)[1] == expected


def test_the_track_is_the_first_or_that_of_a_language() -> None:
    tracks = [("dvd_subtitle", "eng", [b"x"]), ("subrip", "deu", [b"Guten Tag"]), ("subrip", "eng", [b"Good day"])]
    data = Reader(titled("matroska", *tracks))
    assert text(data, (), 99) == "Guten Tag"
    assert text(data, ["eng"], 99) == text(data, ["fra", "ENG"], 99) == "Good day"
    assert text(data, ["fra"], 99) is None


def test_a_long_text_is_cut() -> None:
    data = Reader(titled("mp4", ("mov_text", "eng", [mov(f"line {n}") for n in range(50)])))
    assert text(data, (), 9) == "line 0 li"
    assert len(text(data, (), 1000) or "") == 50 * 7 + 39


def test_a_video_without_subtitles_has_none() -> None:
    found, none = limited.inspect(video("mp4 h264"), 1000)
    assert none is None and found == limited.probe(video("mp4 h264"))


def test_what_follows_damage_is_left_out() -> None:
    whole = titled("matroska", ("subrip", "eng", [f"line {n}".encode() for n in range(20)]))
    cut = text(Reader(whole[: whole.index(b"line 7") + 2]), (), 1000)
    assert cut == " ".join(f"line {n}" for n in range(7))


def test_only_the_lines_in_an_mp4_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(Reader):
        read = 0

        def read_at(self, offset: int, size: int) -> bytes:
            data = super().read_at(offset, size)
            self.read += len(data)
            return data

    monkeypatch.setattr("curate.codec.video.source.READ_AHEAD_BYTES", 4096)
    data = titled("mp4", ("mov_text", "eng", [mov("Good day")]), codec="mjpeg", frames=400)
    reader = Counted(data)
    assert text(reader, (), 99) == "Good day"
    assert reader.read < len(data) / 4


def test_a_file_that_takes_too_long_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subtitles, "BASE_SECONDS", -60.0)
    with pytest.raises(Undecodable) as caught:
        text(Reader(titled("matroska", ("subrip", "eng", [b"Good day"]))), (), 99)
    assert caught.value.reason == "too_slow"
