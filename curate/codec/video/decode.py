"""Decodes a video from beginning to end, once: the reference for the frame that is shown at a time.

A frame is shown from its time until the next frame's: half-open, in whole milliseconds from the start of the stream.
Before the first frame, the first is shown, and after the last frame, the last. A frame without a time, or with one that
is not after all before it, is shown at no time; it is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from av.video.frame import VideoFrame

from curate.codec.video.containers import MAX_CORRUPT
from curate.codec.video.motion import Vectors, vectors
from curate.codec.video.planes import Planes, of_frame
from curate.codec.video.source import DAMAGE, Source
from curate.core.errors import Undecodable

MOST_UNTIMED = 8
NOT_CODED_BYTES = 8
"""A VOP of MPEG-4 that is coded has more, in videos of 64 x 64 pixels at least."""
I_FRAME = 1
"""AVPictureType."""


@dataclass(frozen=True)
class Picture:
    """A frame from its time on, as a copy: if callers kept FFmpeg's buffers, damaged parts of later frames would show
    something else."""

    ms: int
    planes: Planes
    corrupt: bool
    """Whether the decoder marks it as damaged."""
    vectors: Vectors
    """Those that it was encoded with, after `export_vectors`."""

    @classmethod
    def of(cls, ms: int, frame: VideoFrame) -> Picture:
        """Raises Undecodable for pixel formats that are not known."""
        return cls(ms, of_frame(frame), frame.is_corrupt, vectors(frame))


@dataclass
class Tally:
    """What a whole pass has seen. Complete after its last frame."""

    frames: int = 0
    """Frames that are shown."""
    corrupt: int = 0
    """Frames that the decoder marks as damaged; they are shown."""
    missing: int = 0
    """Packets that hold a frame, and gave none."""
    untimed: int = 0
    """Frames that are shown at no time."""
    i_frames: int = 0
    """Frames that refer to no other: key frames are among them."""
    sizes: int = 0
    """How often the size changes."""
    truncated: bool = False
    end_ms: int = 0
    """When the last frame ends: by an mp4's header, by its own duration, or the average one."""

    def reason(self, most: float = MAX_CORRUPT) -> Undecodable | None:
        """Why the video should not be used, if more than this share of its frames is damaged."""
        every = max(1, self.frames + self.missing + self.untimed)
        if self.frames == 0:
            return Undecodable("truncated" if self.truncated else "corrupt", "no frame can be decoded")
        if self.untimed > most * every:
            return self._no_times()
        if self.truncated:
            return Undecodable("truncated", f"ends after {self.frames:,} frames")
        if self.corrupt + self.missing > most * every:
            detail = f"{self.corrupt:,} damaged and {self.missing:,} missing of {every:,} frames"
            return Undecodable("corrupt", detail)
        return None

    def check_times(self) -> None:
        """Raise Undecodable if times so far are those of decoding, or all the same."""
        if self.untimed > max(MOST_UNTIMED, self.frames // 4):
            raise self._no_times()

    def _no_times(self) -> Undecodable:
        every = self.frames + self.untimed
        return Undecodable("no_timestamps", f"{self.untimed:,} of {every:,} frames are shown at no time")


def pictures(source: Source, tally: Tally | None = None) -> Iterator[Picture]:
    """Each frame that is shown, in order. A packet that cannot be decoded is counted and skipped."""
    tally = Tally() if tally is None else tally
    tally.truncated = source.cut
    last, duration, size, first = None, 0, None, 0
    for _, frames in source.decoded(_counted(source, tally)):
        for frame in frames or ():
            tally.missing -= 1
            if frame.pts is None or (last is not None and frame.pts <= last):
                tally.untimed += 1
                continue
            first = frame.pts if last is None else first
            last, duration = frame.pts, frame.duration
            tally.frames += 1
            tally.corrupt += frame.is_corrupt
            tally.i_frames += frame.pict_type == I_FRAME
            tally.sizes += size is not None and size != (frame.width, frame.height)
            size = frame.width, frame.height
            yield Picture.of(source.ms(frame.pts), frame)
    tally.missing = max(0, tally.missing)
    if last is not None:
        average = (last - first) // (tally.frames - 1) if tally.frames > 1 else 0
        tally.end_ms = source.end_ms(last, duration or average)


def _counted(source: Source, tally: Tally) -> Iterator[object]:
    """All packets; those that hold a frame count as missing until it comes."""
    before, packets = None, 0
    try:
        for packet in source.packets():
            hidden = source.codec == "vp8" and not memoryview(packet)[0] & 0x10
            second_field = packet.pts is not None and packet.pts == before
            hidden |= source.codec == "mpeg4" and packet.size <= NOT_CODED_BYTES  # the frame before stays
            if not (packet.is_discard or hidden or second_field):
                tally.missing += 1
            before, packets = packet.pts, packets + 1
            yield packet
        if source.format == "mp4" and packets < len(source.stream.index_entries):
            tally.truncated = True
    except DAMAGE:  # the container: what follows is out of reach
        tally.truncated = True


def shown(source: Source, times_ms: list[int]) -> Iterator[Picture]:
    """The frame at each time (ascending), by a pass up to the last of them. Raises Undecodable, possibly after some
    frames, if there is none or too many have no time."""
    waiting, before, tally = list(times_ms), None, Tally()
    for picture in pictures(source, tally):
        while waiting and before is not None and picture.ms > waiting[0]:
            yield before
            waiting.pop(0)
        if not waiting:
            return
        before = picture
        tally.check_times()
    tally.check_times()
    if before is None:
        raise tally.reason() or AssertionError
    yield from [before] * len(waiting)
