"""What a video is, from its header and its first frame."""

from __future__ import annotations

from itertools import islice

from curate.codec.video.containers import Probe
from curate.codec.video.planes import of_frame
from curate.codec.video.source import Budget, Input, Source, opened
from curate.core.errors import Undecodable

FIRST_PACKETS = 300
"""If none of these packets gives a frame, the video cannot be decoded."""
MAX_FPS = 1000


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
    if source.stream.duration:
        found = source.ms(source.start + source.stream.duration)
    else:
        found = (source.container.duration or 0) // 1000
    return found if 0 < found < 1 << 53 else None


def _fps(source: Source) -> float | None:
    rate = source.stream.average_rate or source.stream.guessed_rate or 0
    return float(rate) if 0 < rate <= MAX_FPS else None
