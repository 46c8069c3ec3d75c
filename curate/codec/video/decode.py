"""Decodes a video from beginning to end, once: the reference for the frame that is shown at a time.

A frame is shown from its time until the next frame's: half-open, in whole milliseconds from the start of the stream.
Before the first frame, the first is shown, and after the last frame, the last. A frame without a time, or with one that
is not after all before it, is shown at no time; it is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from av.video.frame import VideoFrame

from curate.codec.video.containers import INDEXED, MAX_CORRUPT
from curate.codec.video.hidden import shows_none
from curate.codec.video.motion import Vectors, vectors
from curate.codec.video.planes import Planes, of_frame
from curate.codec.video.source import DAMAGE, Source
from curate.core.errors import Undecodable

FEW_UNTIMED, MOST_UNTIMED = 2, 8
MOST_LEADING = 32
"""A recording that was cut open begins with frames that depend on what was before. They are shown before the first key
frame or, where containers have no index, also stored before it. The decoder leaves them out without an error. If it
leaves out more, they are missing."""
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
        if self.untimed > max(most * every, min(FEW_UNTIMED, every // 8)):
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
    tally, clock = Tally() if tally is None else tally, _Clock(source)
    tally.truncated = source.cut
    last, duration, size, first = None, 0, None, 0
    early, pairs, second = set[int](), dict[int | None, int](), None
    for packet, frames in source.decoded(_counted(source, tally, early, pairs)):
        if frames is None and packet is not None:
            early.discard(packet.pts)
            tally.missing += shows_none(source.codec, packet)  # it cannot be decoded: its header may be wrong
        for frame in frames or ():
            tally.missing -= 1 + (second not in (None, frame.pts))  # the second field of the frame before
            follows = pairs.pop(frame.pts, None)
            second = follows if frame.interlaced_frame else None
            time = clock.time(frame)
            if time is None or (last is not None and time <= last):
                tally.untimed += 1
                continue
            first = time if last is None else first
            last, duration = time, frame.duration
            tally.frames += 1
            tally.corrupt += frame.is_corrupt
            tally.i_frames += frame.pict_type == I_FRAME
            tally.sizes += size is not None and size != (frame.width, frame.height)
            size = frame.width, frame.height
            yield Picture.of(source.ms(time), frame)
    leading = sum(time < first for time in early)
    tally.missing -= (second is not None) + (leading if leading <= MOST_LEADING else 0)
    tally.missing = max(0, tally.missing)
    if last is not None:
        average = (last - first) // (tally.frames - 1) if tally.frames > 1 else 0
        tally.end_ms = source.end_ms(last, duration or average)


class _Clock:
    """The times of frames as FFmpeg guesses them (libavcodec/decode.c, guess_correct_pts; fftools/ffmpeg_dec.c): some
    containers have only the times of decoding, or not that of each frame."""

    def __init__(self, source: Source) -> None:
        rate, base = source.stream.average_rate, source.stream.time_base
        self._usual = round(1 / rate / base) if rate else 0
        self._pts: int | None = None
        self._dts: int | None = None
        self._last: int | None = None
        self._faults = [0, 0]

    def time(self, frame: VideoFrame) -> int | None:
        pts, dts = frame.pts, frame.dts
        if dts is not None:
            self._faults[1] += self._dts is not None and dts <= self._dts
            self._dts = dts
        elif pts is not None:
            self._dts = pts
        if pts is not None:
            self._faults[0] += self._pts is not None and pts <= self._pts
            self._pts = pts
        elif dts is not None:
            self._pts = dts
        found = pts if pts is not None and (dts is None or self._faults[0] <= self._faults[1]) else dts
        late = found is None or (dts is None and self._faults[0] and self._last is not None and found <= self._last)
        if late and self._last is not None and self._usual:
            found = self._last + (frame.duration or self._usual)
        self._last = found
        return found


def _field(source: Source) -> Fraction | None:
    """How long a field is shown, by the codec's own header, if it may be in a separate packet."""
    rate = source.stream.codec_context.framerate if source.codec == "h264" else None
    return 1 / (2 * rate * source.stream.time_base) if rate else None


def _counted(source: Source, tally: Tally, early: set[int], pairs: dict[int | None, int]) -> Iterator[object]:
    """All packets; those that hold a frame count as missing until it comes. `early` gets the times of those that depend
    on what was before the video, `pairs` that of the packet which follows half a frame later: perhaps the two are the
    fields of one."""
    before, packets, first_key, indexed, field = None, 0, None, source.format in INDEXED, _field(source)
    try:
        for packet in source.packets():
            second_field = packet.pts is not None and packet.pts == before
            if field and None not in (before, packet.pts) and abs(packet.pts - before - field) < 1:
                pairs[before] = packet.pts
            if not (packet.is_discard or second_field or shows_none(source.codec, packet)):
                tally.missing += 1
                leads = not indexed if first_key is None else packet.pts is not None and packet.pts < first_key
                if leads and packet.pts is not None and not packet.is_keyframe and len(early) <= 2 * MOST_LEADING:
                    early.add(packet.pts)
            if first_key is None and (packet.is_keyframe or indexed):
                first_key = packet.pts
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
