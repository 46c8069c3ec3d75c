"""Videos that the ffmpeg program makes: our counts, times and pixels are its own. Part of `make test-interop`."""

from __future__ import annotations

import hashlib
import subprocess
from fractions import Fraction
from pathlib import Path

import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from curate.codec.video.decode import Tally, pictures
from curate.codec.video.probe import probe
from curate.codec.video.source import opened
from curate.core.reader import Reader

SECONDS, FPS = 1.6, 25
SOURCE = ["-f", "lavfi", "-i", f"testsrc2=size=96x64:rate={FPS}:duration={SECONDS}"]
SOUND = ["-f", "lavfi", "-i", f"sine=frequency=440:duration={SECONDS}"]
CODECS = {
    "h264": "libx264 -preset ultrafast -bf 2 -g 12",
    "h264 open": "libx264 -preset veryfast -bf 3 -g 12 -x264-params open-gop=1:scenecut=0",
    "h264 fields": "libx264 -preset veryfast -g 12 -flags +ildct+ilme -x264-params tff=1",
    "hevc": "libx265 -preset ultrafast -x265-params log-level=none:keyint=12:bframes=3:open-gop=1",
    "hevc kvazaar": "libkvazaar",
    "vp8": "libvpx -deadline realtime -g 12 -auto-alt-ref 1 -lag-in-frames 10",
    "vp9": "libvpx-vp9 -deadline good -cpu-used 8 -g 12 -auto-alt-ref 1 -lag-in-frames 10",
    "av1": "libaom-av1 -cpu-used 8 -g 12 -lag-in-frames 12",
    "av1 svt": "libsvtav1 -preset 12 -g 12",
    "mpeg4": "mpeg4 -g 12 -bf 2",
    "msmpeg4v2": "msmpeg4v2 -g 12",
    "msmpeg4": "msmpeg4 -g 12",
    "wmv1": "wmv1 -g 12",
    "wmv2": "wmv2 -g 12",
    "mpeg1": "mpeg1video -g 12 -bf 2",
    "mpeg2": "mpeg2video -g 12 -bf 2",
    "mpeg2 fields": "mpeg2video -g 12 -flags +ildct+ilme",
    "mjpeg": "mjpeg",
    "theora": "libtheora -g 12",
    "h263": "h263 -s 128x96",
    "flv1": "flv -g 12",
    "ffv1": "ffv1",
}
DASH = "mp4 -movflags frag_keyframe+delay_moov+dash"
MATRIX = {
    "h264": ["mp4", "mov", DASH, f"{DASH} -output_ts_offset 3892", "mp4 -use_editlist 0", "mp4 -output_ts_offset 3.9",
             "mp4 -movflags negative_cts_offsets", "matroska", "matroska -output_ts_offset 100", "mpegts",
             "mpegts -mpegts_m2ts_mode 1", "flv", "avi", "asf", "mpeg"],
    "h264 open": ["mp4", "mpegts"],
    "h264 fields": ["mp4", "mpegts"],
    "hevc": ["mp4", "mpegts", "matroska"],
    "hevc kvazaar": ["mp4 -movflags frag_keyframe+empty_moov"],
    "vp8": ["webm", "ogg"],
    "vp9": ["webm", "mp4"],
    "av1": ["webm", "mp4"],
    "av1 svt": ["mp4"],
    "mpeg4": ["avi", "mp4"],
    "msmpeg4v2": ["avi"],
    "msmpeg4": ["avi"],
    "wmv1": ["asf"],
    "wmv2": ["asf"],
    "mpeg1": ["mpeg", "mpegts"],
    "mpeg2": ["mpeg", "vob", "mpegts"],
    "mpeg2 fields": ["vob"],
    "mjpeg": ["mov", "avi"],
    "theora": ["ogg"],
    "h263": ["3gp"],
    "flv1": ["flv"],
    "ffv1": ["matroska"],
}  # fmt: skip
"""Codec -> muxers, each with its options."""
GUESSED = ("h264 avi", "h264 asf", "h264 mpeg")
"""The containers have not the times of all frames: one or two at the ends are not shown."""
WITH_SOUND = ("mp4", "mov", "matroska", "mpegts", "flv", "avi", "asf")


def ffmpeg(*words: str) -> str:
    done = subprocess.run([get_ffmpeg_exe(), "-v", "error", "-y", *words], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("codec", "muxer"),
    [pytest.param(codec, muxer, id=f"{codec} {muxer}") for codec in MATRIX for muxer in MATRIX[codec]],
)
def test_frames_times_and_pixels_are_those_of_ffmpeg(tmp_path: Path, codec: str, muxer: str) -> None:
    file, container = tmp_path / "film", muxer.split()[0]
    sound = container in WITH_SOUND
    streams = [
        "-map",
        "0:v",
        *(["-map", "1:a", "-c:a", "mp2" if container in ("avi", "asf") else "aac"] if sound else []),
    ]
    pixels = [] if codec == "mjpeg" else ["-pix_fmt", "yuv420p"]
    ffmpeg("-threads", "1", *SOURCE, *(SOUND if sound else []), *streams, "-c:v", *CODECS[codec].split(), *pixels,
           "-f", *muxer.split(), str(file))  # fmt: skip
    said = ffmpeg(
        "-i", str(file), "-map", "0:v:0", "-fps_mode", "passthrough", "-vf", "extractplanes=y",
        "-f", "framehash", "-hash", "md5", "-",
    ).splitlines()  # fmt: skip
    base = Fraction(next(line.split()[-1] for line in said if line.startswith("#tb")))
    lines = [line.replace(" ", "").split(",") for line in said if not line.startswith("#")]
    expected = [(float((int(line[2]) - int(lines[0][2])) * base * 1000), line[5]) for line in lines]
    tally = Tally()
    with opened(Reader(file.read_bytes())) as source:
        found = [
            (one.ms, hashlib.md5(one.planes.planes[0].tobytes(), usedforsecurity=False).hexdigest())
            for one in pictures(source, tally)
        ]
    assert tally.reason() is None and not tally.corrupt and not tally.missing
    if f"{codec} {container}" in GUESSED:
        rest = iter(digest for _, digest in expected)
        assert len(expected) - len(found) <= 2 and all(digest in rest for _, digest in found)
        return
    assert [digest for _, digest in found] == [digest for _, digest in expected]
    begin = found[0][0] if container in ("avi", "asf") else 0  # their first time may be that of decoding
    assert max(abs(ms - begin - time) for (ms, _), (time, _) in zip(found[1:], expected[1:], strict=True)) <= 17
    duration = probe(Reader(file.read_bytes())).duration_ms
    assert abs(tally.end_ms - 1000 * SECONDS) <= 120
    assert duration is None or abs(duration - 1000 * SECONDS) <= 120
