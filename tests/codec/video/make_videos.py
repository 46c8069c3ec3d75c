"""Videos whose frames show their number: sixteen blocks of light and dark, which survive any encoder."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

BITS = 16


@contextmanager
def ordinary_priority() -> Iterator[None]:
    """For encoders: SVT-AV1, if root runs it, makes the calling thread a real-time one, and so its later children."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def numbered(number: int, width: int = 96, height: int = 64) -> NDArray[np.uint8]:
    """An RGB frame of BITS blocks over a pattern that moves."""
    y, x = np.ogrid[:height, :width]
    rgb = np.empty((height, width, 3), np.uint8)
    for channel, values in enumerate((x * 2 + number * 3, y * 3 + number, x + y + 5 * number)):
        rgb[..., channel] = (values % 256 // 4 + 96).astype(np.uint8)
    rows, columns = height // 4, width // 4
    for bit in range(BITS):
        top, left = bit // 4 * rows, bit % 4 * columns
        rgb[top + 2 : top + rows - 2, left + 2 : left + columns - 2] = 235 if number >> bit & 1 else 20
    return rgb


def number_of(rgb_HWC: NDArray[np.uint8]) -> int:
    """What `numbered` drew."""
    grey = rgb_HWC.mean(-1)
    rows, columns = grey.shape[0] // 4, grey.shape[1] // 4
    middles = [grey[b // 4 * rows + rows // 2, b % 4 * columns + columns // 2] for b in range(BITS)]
    return sum(1 << bit for bit, value in enumerate(middles) if value > 128)


@dataclass(frozen=True)
class Kind:
    """How a file is made: `container` is the muxer's name."""

    container: str
    codec: str
    pix_fmt: str = "yuv420p"
    options: dict[str, str] = field(default_factory=dict)
    size: tuple[int, int] = (96, 64)
    audio: str = ""
    ticks: Callable[[int], int] | None = None
    """Number of a frame -> its time in 1/1000 s; by default `rate` frames a second."""
    rate: Fraction = Fraction(25)
    sizes: tuple[tuple[int, int], ...] = ()


GOP = {"g": "12"}
X264 = {"preset": "ultrafast", "tune": "zerolatency", "g": "12"}
B_FRAMES = {"preset": "veryfast", "g": "12", "bf": "3", "x264-params": "scenecut=0"}
KINDS = {
    "mp4 h264": Kind("mp4", "libx264", options=B_FRAMES, audio="aac"),
    "mp4 h264 open": Kind("mp4", "libx264", options=B_FRAMES | {"x264-params": "scenecut=0:open-gop=1"}),
    "mp4 h264 refresh": Kind("mp4", "libx264", options=B_FRAMES | {"bf": "0", "x264-params": "intra-refresh=1"}),
    "mp4 h264 vfr": Kind("mp4", "libx264", options=B_FRAMES, ticks=lambda n: n * 40 + (n % 7) * 5 + (n > 30) * 900),
    "mp4 h264 odd": Kind("mp4", "libx264", "yuv444p", B_FRAMES, (97, 65)),
    "mp4 h264 422": Kind("mp4", "libx264", "yuv422p10le", X264),
    "mp4 hevc": Kind("mp4", "libx265", options={"preset": "ultrafast", "x265-params": "keyint=12:log-level=none"}),
    "mp4 hevc 10": Kind("mp4", "libx265", "yuv420p10le", {"preset": "ultrafast", "x265-params": "log-level=none"}),
    "mp4 vp9": Kind("mp4", "libvpx-vp9", options=GOP | {"deadline": "realtime", "cpu-used": "8"}),
    "mp4 av1": Kind("mp4", "libsvtav1", options=GOP | {"preset": "12"}),
    "mp4 mpeg4": Kind("mp4", "mpeg4", options=GOP | {"bf": "2"}),
    "mov prores": Kind("mov", "prores", "yuv422p10le"),
    "mkv h264": Kind("matroska", "libx264", options=B_FRAMES, audio="libopus"),
    "mkv ffv1": Kind("matroska", "ffv1", "yuv420p", GOP),
    "mkv gray": Kind("matroska", "ffv1", "gray", GOP),
    "mkv rgb": Kind("matroska", "ffv1", "bgr0", GOP),
    "webm vp8": Kind("webm", "libvpx", options=GOP | {"deadline": "realtime"}),
    "webm vp9": Kind("webm", "libvpx-vp9", options=GOP | {"deadline": "realtime", "auto-alt-ref": "1"}),
    "avi mpeg4": Kind("avi", "mpeg4", options=GOP),
    "avi mpeg4 b": Kind("avi", "mpeg4", options=GOP | {"bf": "2"}),
    "avi mjpeg": Kind("avi", "mjpeg", "yuvj420p"),
    "avi msmpeg4": Kind("avi", "msmpeg4", options=GOP),
    "ts h264": Kind("mpegts", "libx264", options=B_FRAMES, audio="aac"),
    "ts mpeg2": Kind("mpegts", "mpeg2video", options=GOP | {"bf": "2"}),
    "ps mpeg2": Kind("mpeg", "mpeg2video", options=GOP | {"bf": "2"}),
    "ps mpeg1": Kind("mpeg", "mpeg1video", options=GOP),
    "flv flv1": Kind("flv", "flv", options=GOP),
    "flv h264": Kind("flv", "libx264", options=B_FRAMES),
    "asf wmv2": Kind("asf", "wmv2", options=GOP),
    "ogg vp8": Kind("ogg", "libvpx", options=GOP | {"deadline": "realtime"}),
}


@cache
def video(kind: str, frames: int = 60) -> bytes:
    """The file of a kind, by its name in KINDS."""
    return made(KINDS[kind], range(frames))


@ordinary_priority()
def made(kind: Kind, numbers: Iterable[int], offset_ms: int = 0, **muxer: str) -> bytes:
    """A file that shows these numbers, one a frame; with options of its muxer."""
    sink = io.BytesIO()
    width, height = kind.size
    with av.open(sink, "w", format=kind.container, options={"fflags": "+bitexact"} | muxer) as output:
        stream: Any = output.add_stream(kind.codec, rate=kind.rate, options=kind.options)
        stream.width, stream.height, stream.pix_fmt = width, height, kind.pix_fmt
        stream.codec_context.thread_count = 1
        if kind.ticks or offset_ms:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        sound: Any = output.add_stream(kind.audio, rate=48_000, layout="mono") if kind.audio else None
        count = 0
        for place, number in enumerate(numbers):
            frame = av.VideoFrame.from_ndarray(numbered(number, width, height)).reformat(format=kind.pix_fmt)
            milliseconds = (kind.ticks(place) if kind.ticks else place * 40) + offset_ms
            frame.time_base = Fraction(1, 1000) if kind.ticks or offset_ms else 1 / kind.rate
            frame.pts = milliseconds if kind.ticks or offset_ms else place
            output.mux(stream.encode(frame))
            count = place + 1
        output.mux(stream.encode(None))
        if sound is not None:
            add_tone(output, sound, count * 1920)
    return sink.getvalue()


def add_tone(output: Any, stream: Any, samples: int) -> None:
    wave = (np.sin(np.arange(samples) * 0.05) * 8000).astype(np.int16)
    for start in range(0, samples, 960):
        frame = av.AudioFrame.from_ndarray(wave[None, start : start + 960], "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = 48_000, start, Fraction(1, 48_000)
        output.mux(stream.encode(frame))
    output.mux(stream.encode(None))


def turned(mp4: bytes, degrees: int) -> bytes:
    """An mp4 whose track header tells players to turn frames clockwise."""
    cos, sin = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees]
    matrix = struct.pack(">9i", cos << 16, sin << 16, 0, -sin << 16, cos << 16, 0, 0, 0, 1 << 30)
    at = mp4.index(b"tkhd") + 4 + 40
    return mp4[:at] + matrix + mp4[at + 36 :]


def edited(mp4: bytes, *parts: tuple[int, int]) -> bytes:
    """An mp4 whose first edit list shows parts: (milliseconds, begin in units of its media; -1 for nothing)."""
    at = mp4.index(b"elst", mp4.rfind(b"moov")) - 4
    box = b"elst" + bytes(4) + struct.pack(">I", len(parts))
    box += b"".join(struct.pack(">IiI", ms, begin, 1 << 16) for ms, begin in parts)
    size = int.from_bytes(mp4[at : at + 4])
    mp4 = mp4[:at] + struct.pack(">I", len(box) + 4) + box + mp4[at + size :]
    for name in (b"edts", b"trak", b"moov"):
        before = mp4.rindex(name, 0, at) - 4
        grown = int.from_bytes(mp4[before : before + 4]) + len(box) + 4 - size
        mp4 = patched(mp4, before, struct.pack(">I", grown))
    return mp4


def not_coded(numbers: Iterable[int]) -> bytes:
    """An MPEG-4 AVI, whose encoder repeats the frames before these by packets that say no more than that."""
    sink, repeated = io.BytesIO(), set(numbers)
    with av.open(io.BytesIO(video("avi mpeg4"))) as source, av.open(sink, "w", format="avi") as output:
        stream = output.add_stream_from_template(source.streams.video[0], opaque=True)
        for number, packet in enumerate(packet for packet in source.demux(source.streams.video[0]) if packet.size):
            if number in repeated:  # P, no second, marker, 5 bits of time, marker, not coded
                bits = f"0101{number % 25:05b}10".ljust(16, "0")
                tiny = av.Packet(b"\0\0\1\xb6" + int(bits, 2).to_bytes(2))
                tiny.pts, tiny.dts, tiny.time_base, tiny.duration = packet.pts, packet.dts, packet.time_base, 1
                packet = tiny
            packet.stream = stream
            output.mux(packet)
    return sink.getvalue()


def patched(data: bytes, at: int, new: Sequence[int] | bytes) -> bytes:
    return data[:at] + bytes(new) + data[at + len(bytes(new)) :]


def repeated(kind: Kind, frames: int, times: int, fps: int = 25) -> bytes:
    """A video of groups of frames, encoded once and written repeatedly, faster than 25 frames a second or not."""
    sink = io.BytesIO()
    group = io.BytesIO(made(kind, range(frames)))
    with av.open(group) as source, av.open(sink, "w", format=kind.container) as output:
        stream: Any = output.add_stream_from_template(source.streams.video[0], opaque=True)
        stream.time_base = Fraction(1, fps)
        packets = [packet for packet in source.demux(source.streams.video[0]) if packet.size]
        places = [
            (int(packet.pts * packet.time_base * 25), int(packet.dts * packet.time_base * 25)) for packet in packets
        ]
        for number in range(times):
            for packet, (pts, dts) in zip(packets, places, strict=True):
                packet.stream, packet.time_base, packet.duration = stream, Fraction(1, fps), 1
                packet.pts, packet.dts = pts + number * frames, dts + number * frames
                output.mux(packet)
    return sink.getvalue()


def plain(kind: Kind, size: tuple[int, int]) -> bytes:
    """One black frame of any size."""
    sink = io.BytesIO()
    with av.open(sink, "w", format=kind.container) as output:
        stream: Any = output.add_stream(kind.codec, rate=25, options=kind.options)
        (stream.width, stream.height), stream.pix_fmt = size, kind.pix_fmt
        stream.codec_context.thread_count = 1
        frame = av.VideoFrame(*size, kind.pix_fmt)
        for place, plane in enumerate(frame.planes):
            plane.update(bytes([128 if place else 16]) * plane.buffer_size)
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return sink.getvalue()


def sound() -> bytes:
    """An mp4 without a video."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as output:
        add_tone(output, output.add_stream("aac", rate=48_000, layout="mono"), 48_000)
    return sink.getvalue()


def timeless() -> bytes:
    """All frames have time 0."""
    sink = io.BytesIO()
    with av.open(io.BytesIO(video("mkv ffv1"))) as source, av.open(sink, "w", format="matroska") as output:
        stream = output.add_stream_from_template(source.streams.video[0], opaque=True)
        for place, packet in enumerate(source.demux(source.streams.video[0])):
            if packet.size:
                packet.stream, packet.pts, packet.dts = stream, 0, place - 1000
                output.mux(packet)
    return sink.getvalue()


def two_sizes() -> bytes:
    """An MPEG-TS of 10 frames of 96 x 64, and 10 of 128 x 96."""
    parts = [
        made(Kind("mpegts", "libx264", options=X264, size=size), range(10), offset_ms)
        for size, offset_ms in (((96, 64), 40), ((128, 96), 440))
    ]
    return b"".join(parts)
