"""Opens videos with FFmpeg, safely: the demuxer is named, no protocol is allowed, one thread decodes.

More threads would hide damage: frames are then no longer marked as corrupt, and what replaces lost parts depends on the
threads. FFmpeg's messages stay off, because a Python callback for them may deadlock.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any, Protocol

import av
from av.container import InputContainer
from av.video.frame import VideoFrame

from curate.codec.formats import SNIFF_BYTES
from curate.codec.video.containers import CODECS, CONTAINERS, DECODERS, MAX_PIXELS, MAX_SIDE, is_cut, sniff
from curate.core.errors import CurateError, Undecodable
from curate.core.reader import RawFile

READ_AHEAD_BYTES = 1 << 18
MAX_FRAMES = 1_000_000
HEADER_TIMES = 4
"""While FFmpeg reads the header, it accepts frames this many times larger, so that we see how large they are."""
BASE_SECONDS, FRAME_SECONDS, PIXEL_SECONDS = 4.0, 1e-3, 3e-8
"""Processor time that a file may take, and more of it for each frame that was decoded, and for each of its pixels:
about five times what slow codecs need."""
BURST_FRAMES, FRAMES_PER_SECOND = 2_000, 240
"""Frames that a file may have, and more of them for each second in which they are shown. A film of hours may have many;
those that a hostile file has in a moment are rejected before they take long."""
DAMAGE = (av.FFmpegError, EOFError, OSError)
"""What PyAV raises at a packet that cannot be read or decoded; other errors are its own."""


class Input(Protocol):
    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, size: int, /) -> bytes: ...


@dataclass
class Budget:
    """What decoding a file may use. Raises Undecodable in between frames."""

    max_pixels: int = MAX_PIXELS
    max_frames: int = MAX_FRAMES
    frames: int = 0
    pixels: int = 0
    shown_seconds: float = 0.0
    """At most one second a frame, so that a jump in time earns nothing."""
    latest: float | None = None
    """Time of the last frame, in seconds."""
    began: float = field(default_factory=time.process_time)

    def spend(self, frames: Iterable[VideoFrame] = ()) -> None:
        for frame in frames:
            self.frames += 1
            self.pixels += frame.width * frame.height
            self.check_size(frame.width, frame.height)
            now = frame.time
            if now is not None:
                self.shown_seconds += min(1.0, max(0.0, now - (now if self.latest is None else self.latest)))
                self.latest = now
        if self.frames > self.max_frames:
            raise Undecodable("too_many_frames", f"over {self.max_frames:,} frames")
        if self.frames > BURST_FRAMES + FRAMES_PER_SECOND * self.shown_seconds:
            raise Undecodable("too_many_frames", f"{self.frames:,} in {self.shown_seconds:.1f} s")
        spent = time.process_time() - self.began
        if spent > BASE_SECONDS + self.frames * FRAME_SECONDS + self.pixels * PIXEL_SECONDS:
            raise Undecodable("too_slow", f"{spent:.1f} s for {self.frames:,} frames")

    def check_size(self, width: int, height: int) -> None:
        if width * height > self.max_pixels:
            raise Undecodable("too_many_pixels", f"{width} x {height}; at most {self.max_pixels:,} pixels are decoded")
        if max(width, height) > MAX_SIDE:
            raise Undecodable("too_many_pixels", f"{width} x {height}; a side has at most {MAX_SIDE:,} pixels")


@dataclass(frozen=True)
class Source:
    """An open video and its first stream of moving images."""

    container: InputContainer
    stream: Any
    format: str
    """One of CONTAINERS."""
    codec: str
    """One of CODECS."""
    cut: bool
    """Whether the end of the file is missing, as far as the container tells."""
    budget: Budget

    def ms(self, ticks: int) -> int:
        """The first whole millisecond that is not before this time of the stream; 0 is the stream's start."""
        time_base: Fraction = self.stream.time_base
        return -(-(ticks - self.start) * time_base.numerator * 1000 // time_base.denominator)

    def ticks(self, ms: int) -> int:
        """The last time of the stream that is not after this millisecond."""
        time_base: Fraction = self.stream.time_base
        return self.start + ms * time_base.denominator // (1000 * time_base.numerator)

    def end_ms(self, last: int, duration: int) -> int:
        """When the last frame, with this time and duration, ends. An edit list may end in the middle of a frame."""
        end = self.stream.duration or 0
        known = self.format == "mp4" and not self.start and end > last
        return self.ms(end if known else last + duration)

    @property
    def edited(self) -> bool:
        """Whether an mp4's edit list of several parts made its index: times go back, or frames between key frames are
        hidden."""
        entries = list(self.stream.index_entries) if self.format == "mp4" else []
        while entries and entries[-1].is_discard:
            entries.pop()
        first = next((place for place, entry in enumerate(entries) if not entry.is_discard), 0)
        keys = [place for place, entry in enumerate(entries) if entry.is_keyframe and place > first]
        hidden = bool(keys) and any(entry.is_discard for entry in entries[keys[0] : keys[-1] + 1])
        return hidden or any(after.timestamp <= one.timestamp for one, after in pairwise(entries))

    @property
    def start(self) -> int:
        return self.stream.start_time or 0

    def packets(self, *streams: Any) -> Iterator[Any]:
        """All packets of the stream, or of these, that hold something."""
        for packet in self.container.demux(*(streams or (self.stream,))):
            self.budget.spend()
            if packet.size:
                yield packet

    def decoded(self, packets: Iterable[Any]) -> Iterator[tuple[Any, list[VideoFrame] | None]]:
        """Packets, each with the frames that are complete with it; None if it cannot be decoded. At the end, no packet
        and the frames that are left. Frames are in the order in which they are shown."""
        for packet in packets:
            frames = _decoded(packet.decode)
            self.budget.spend(frames or ())
            yield packet, frames
        frames = _decoded(self.stream.codec_context.decode)
        self.budget.spend(frames or ())
        yield None, frames


def _decoded(decode: Callable[[], list[VideoFrame]]) -> list[VideoFrame] | None:
    try:
        return decode()
    except DAMAGE:
        return None


@contextmanager
def opened(reader: Input, budget: Budget | None = None, strict: bool = False) -> Iterator[Source]:
    """The video. Raises Undecodable, in the block too: errors of the decoder get their reasons here.
    strict: a packet with any damage cannot be decoded; decoders also call some healthy packets damaged."""
    budget = budget or Budget()
    head = reader.read_at(0, SNIFF_BYTES)
    if not head:
        raise Undecodable("empty", "0 bytes")
    name = sniff(head)
    if name is None:
        raise Undecodable("not_a_video", f"starts with {bytes(head[:12])!r}")
    options = {
        "protocol_whitelist": "",
        "codec_whitelist": DECODERS,
        "max_pixels": str(HEADER_TIMES * budget.max_pixels),
    }
    file = io.BufferedReader(RawFile(reader), READ_AHEAD_BYTES)  # type: ignore[arg-type]
    cut = is_cut(name, reader)  # type: ignore[arg-type]
    try:
        with av.open(file, "r", CONTAINERS[name], options, metadata_errors="ignore") as container:
            stream, codec = _stream(container)
            budget.check_size(stream.codec_context.width, stream.codec_context.height)
            stream.codec_context.thread_count = 1
            stream.codec_context.options = {"max_pixels": str(budget.max_pixels)} | (
                {"err_detect": "explode"} if strict else {}
            )
            yield Source(container, stream, name, codec, cut, budget)
    except (CurateError, GeneratorExit):
        raise
    except Exception as error:  # the sample boundary
        if isinstance(error, MemoryError) and not isinstance(error, av.FFmpegError):
            raise
        raise _undecodable(name, error, cut) from None


def _stream(container: InputContainer) -> tuple[Any, str]:
    """The video stream that players show, and its codec: the default one, else one of several frames, else the largest,
    but no cover image."""
    covers = av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails
    streams = [one for one in container.streams.video if not one.disposition & covers]
    stream = max(streams, key=_shown_first, default=None)
    if stream is None:
        raise Undecodable("no_video_stream", f"{len(container.streams)} other streams")
    codec = stream.codec_context.codec.canonical_name if stream.codec_context else "unknown codec"
    if codec not in CODECS:
        raise Undecodable("unsupported", f"{codec} is not decoded; expected one of {', '.join(CODECS)}")
    if not stream.time_base:
        raise Undecodable("corrupt", "the stream has no time base")
    return stream, codec


def _shown_first(stream: Any) -> tuple[bool, bool, int]:
    size = stream.codec_context.width * stream.codec_context.height if stream.codec_context else 0
    return bool(stream.disposition & av.stream.Disposition.default), stream.frames != 1, size


def _undecodable(name: str, error: Exception, cut: bool) -> Undecodable:
    text = f"{name}: {type(error).__name__}: {error}"
    if cut or isinstance(error, EOFError):
        return Undecodable("truncated", text)
    if isinstance(error, av.PatchWelcomeError | av.DecoderNotFoundError | NotImplementedError):
        return Undecodable("unsupported", text)
    return Undecodable("corrupt" if isinstance(error, DAMAGE) else "library_error", text)
