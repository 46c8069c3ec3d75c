"""Videos through limited child processes."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from curate.codec import media
from curate.codec.readers import FileReader
from curate.codec.video import exact, limited, source
from curate.codec.video.extract import extract
from curate.codec.video.probe import probe
from curate.core.child import Ended, Warm
from curate.core.errors import CurateError, Reject, StorageError, Undecodable
from curate.core.reader import Reader
from curate.core.store.storage import open_storage
from tests.codec.video.make_videos import Kind, made, number_of, repeated, video

VIDEO = video("mp4 h264")
READS: dict[str, Callable[[Any], Any]] = {
    "probe": limited.probe,
    "frames": lambda data: list(limited.frames(data, [0, 700])),
    "extract": lambda data: limited.extract(data, {"start_ms": 500, "stop_ms": 900}).bytes(),
    "thumbnail": lambda data: limited.thumbnail(data, 48),
}


@pytest.mark.parametrize("kind", ["mp4 h264", "mp4 av1", "mkv ffv1", "webm vp9", "avi mpeg4", "ts h264", "mp4 hevc 10"])
def test_a_child_gives_what_its_functions_give(kind: str) -> None:
    data = video(kind)
    assert limited.probe(data) == probe(Reader(data))
    times = [0, 41, 990, 990, 2399]
    found, expected = list(limited.frames(data, times)), list(exact.shown(Reader(data), times))
    assert [frame.ms for frame in found] == [picture.ms for picture in expected]
    assert all(np.array_equal(one.rgb, two.planes.rgb()) for one, two in zip(found, expected, strict=True))
    if "ffv1" not in kind:
        assert READS["extract"](data) == extract(Reader(data), {"start_ms": 500, "stop_ms": 900})
    assert Image.open(io.BytesIO(limited.thumbnail(data, 48))).size == (48, 32)
    assert Image.open(io.BytesIO(limited.thumbnail(data, 48, 3))).size == (144, 32)


def test_frames_may_be_small() -> None:
    (frame,) = limited.frames(VIDEO, [1000], side=32)
    assert frame.rgb.shape == (32, 48, 3) and not frame.corrupt


def test_large_frames_come_in_parts() -> None:
    data = made(Kind("mp4", "mpeg4", size=(2048, 1408)), range(2))
    (frame,) = limited.frames(data, [40])
    assert number_of(frame.rgb) == 1 and frame.rgb.nbytes > 8 << 20


def test_the_medium() -> None:
    medium = media.of("video")
    assert media.sniffed(VIDEO, ["image", "video"]) is medium
    assert medium.probe(VIDEO).frames == 60
    (frame,) = medium.frames(VIDEO, [0.5])
    assert (frame.span, frame.ext) == ({"ms": 480}, "png")
    assert number_of(np.asarray(Image.open(io.BytesIO(frame.data)))) == 12
    spans = [{"start_ms": 0, "stop_ms": 400}, {"start_ms": 500, "stop_ms": 900}]
    made = [copy.bytes() for copy in medium.extract(VIDEO, spans)]
    assert made == [limited.extract(VIDEO, span).bytes() for span in spans] and made[0] != made[1]
    assert medium.open(VIDEO, max_pixels=9).size == len(VIDEO)
    assert set(medium.reasons) >= {"decoder_died", "truncated", "not_copyable"}


def test_a_large_copy_is_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    span = {"start_ms": 0, "stop_ms": 2000}
    held = limited.extract(VIDEO, span)
    monkeypatch.setattr(limited, "HELD_BYTES", 100)
    copy = limited.extract(VIDEO, span)
    assert type(copy) is not type(held) and copy.size == held.size > 100
    assert copy.bytes() == b"".join(copy.blocks()) == copy.open().read() == held.bytes()
    assert copy.read_at(copy.size - 3, 9) == held.bytes()[-3:] and limited.probe(copy) == limited.probe(held)


@pytest.mark.parametrize(("child", "reason"), [("crash", "decoder_died"), ("sleep", "decoder_timeout")])
def test_a_crash_and_a_deadline_are_reasons(monkeypatch: pytest.MonkeyPatch, child: str, reason: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    with closing(Warm("tests.core.bad_children")) as warm:
        monkeypatch.setattr(limited, "CHILD", "tests.core.bad_children")
        stream = warm.stream
        monkeypatch.setattr(warm, "stream", lambda _, *given: stream(f"tests.core.bad_children:{child}", *given))
        with pytest.raises(Undecodable) as caught:
            list(limited.stream("", {}, VIDEO, 0.5, warm))
    assert caught.value.reason == reason


HEAD = limited.HEAD.pack(0, 2, 2, False)


@pytest.mark.parametrize(
    ("read", "parts"),
    [
        ("probe", [b"+{}"]),
        ("probe", [b"-odd\nx"]),
        ("probe", [b"other"]),
        ("frames", []),
        ("frames", [b"+" + HEAD]),
        ("frames", [b"+" + HEAD, b"+" + bytes(13)]),
        ("frames", [b"+" + limited.HEAD.pack(0, 1 << 31, 1 << 31, False), b"+" + bytes(9)]),
        ("frames", [b"+" + HEAD, b"+" + bytes(12)] * 3),
        ("thumbnail", [b"+RIFF"]),
    ],
)
def test_what_a_hostile_decoder_answers_is_checked(
    monkeypatch: pytest.MonkeyPatch, read: str, parts: list[bytes]
) -> None:
    def stream(*_: object) -> Iterator[bytes]:
        yield from parts
        return Ended(b"")

    monkeypatch.setattr(limited._warm, "stream", stream)
    with pytest.raises(Undecodable) as caught:
        READS[read](VIDEO)
    assert caught.value.reason == "decoder_died"


def test_what_a_reader_raises_reaches_the_caller() -> None:
    class Lost(Reader):
        def read_at(self, offset: int, size: int) -> bytes:
            raise Reject("changed", "x") if offset else StorageError("x")

    with pytest.raises(CurateError):
        limited.probe(Lost(VIDEO))


def test_times_ascend() -> None:
    with pytest.raises(ValueError, match="not ascending"):
        list(limited.frames(VIDEO, [2, 1]))


def test_this_process_does_not_load_ffmpeg() -> None:
    code = "import sys, curate.codec.media; sys.exit('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Counted(Reader):
    read = 0

    def read_at(self, offset: int, size: int) -> bytes:
        data = super().read_at(offset, size)
        self.read += len(data)
        return data


@pytest.mark.parametrize("kind", ["mp4", "matroska"])
def test_little_of_a_large_member_is_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"g": "12", "qp": "0", "preset": "ultrafast", "bf": "0"}
    data = repeated(Kind(kind, "libx264", options=options, size=(320, 240)), 12, 25)
    monkeypatch.setattr(exact, "SURVEY_BYTES", 0)
    monkeypatch.setattr(source, "READ_AHEAD_BYTES", 1 << 14)
    reader = Counted(data)
    assert probe(reader).frames in (300, None)
    assert [picture.ms for picture in exact.shown(reader, [4000, 8000])] == [4000, 8000]
    assert reader.read < len(data) / 5


def test_a_file_is_read_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(VIDEO)
    reader = FileReader(open_storage(str(tmp_path)), "a.mp4")
    assert limited.probe(reader) == limited.probe(VIDEO)
    (frame,) = limited.frames(reader, [960])
    assert number_of(frame.rgb) == 24
