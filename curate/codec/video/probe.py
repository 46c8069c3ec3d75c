"""What a video is, from its header and its first frame."""

from __future__ import annotations

import re
from itertools import islice

from curate.codec.video.containers import Probe
from curate.codec.video.planes import of_frame
from curate.codec.video.source import Budget, Input, Source, opened
from curate.core.errors import Undecodable

FIRST_PACKETS = 300
"""If none of these packets gives a frame, the video cannot be decoded."""
MAX_FPS = 1000
_TAG = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")
LAST = 1 << 60
"""A time after all others."""


def probe(reader: Input, budget: Budget | None = None) -> Probe:
    """Raises Undecodable."""
    with opened(reader, budget) as source:
        packets = source.decoded(islice(source.packets(), FIRST_PACKETS))
        frame = next((frame for _, frames in packets for frame in frames or ()), None)
        if frame is None:
            raise Undecodable("truncated" if source.cut else "corrupt", f"{source.codec}: no frame can be decoded")
        planes = of_frame(frame)
        return Probe(
            *planes.size,
            format=source.format,
            codec=source.codec,
            pixels=frame.format.name,
            rotation=planes.rotation,
            duration_ms=_duration_ms(source),
            fps=_fps(source),
            frames=source.stream.frames if source.stream.frames > 0 else None,
            has_audio=bool(source.container.streams.audio),
        )


def _duration_ms(source: Source) -> int | None:
    """From the first frame to the end of the last, or of the sound where only the whole has a duration. Some muxers of
    Matroska count from 0, others from the first frame: then the last one is after the end."""
    if source.format == "mp4" and not source.stream.frames:  # in fragments, whose header has no duration
        source.container.seek(LAST, stream=source.stream)
        ends = (one.pts + (one.duration or 0) for one in source.packets() if one.pts is not None)
        found = source.ms(max(ends, default=source.start))
    elif source.stream.duration:
        found = source.ms(source.start + source.stream.duration)
    elif tag := _TAG.fullmatch(source.stream.metadata.get("DURATION", "")):  # of Matroska; its header has that of sound
        found = round(1000 * (3600 * int(tag[1]) + 60 * int(tag[2]) + float(tag[3])))
        begin, entries = round(1000 * source.start * source.stream.time_base), source.stream.index_entries
        found -= (
            begin if 0 < begin < found and source.ms(entries[-1].timestamp if entries else 0) <= found - begin else 0
        )
    else:
        found, entries = (source.container.duration or 0) // 1000, source.stream.index_entries
        begin = (source.container.start_time or 0) // 1000
        last = begin + source.ms(entries[-1].timestamp) if entries else 0
        found -= begin if begin > 0 and last <= found else 0
    return found if 0 < found < 1 << 53 else None


def _fps(source: Source) -> float | None:
    rate = source.stream.average_rate or source.stream.guessed_rate or 0
    return float(rate) if 0 < rate <= MAX_FPS else None
