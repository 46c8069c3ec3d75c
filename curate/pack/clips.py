"""Members of a video in the dataset: JPEGs of its frames, an mp4 with its sound, or both."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from PIL import Image

from curate.codec.video import limited
from curate.codec.video.containers import COPYABLE
from curate.codec.video.times import times_ms
from curate.core.errors import Reject
from curate.core.reader import Reader

Kept = Literal["frames", "clip", "both"]
MOST_FRAMES = 100
"""Numbers of frames have two digits."""
QUALITY, SUBSAMPLING = 92, "4:2:0"


@dataclass(frozen=True)
class Clip:
    """What is packed of a video."""

    frames: list[bytes]
    """JPEGs of equal size."""
    mp4: Reader | None
    facts: dict[str, Any]
    """For the JSON. Width, height, format and sha256 are those of the frames, in order; without frames, of the mp4."""
    source: dict[str, Any]
    """Width, height and format of the video."""

    def add(self, name: str, single: bool, add: Callable[[str, bytes | Reader], int]) -> tuple[str, int, int, Any]:
        """Write the members; single: a frame gets no number. (extension, offset and size of all frames, or of the mp4
        without frames, columns of the index)."""
        names = [f"{name}.jpg" if single else f"{name}.{number:02d}.jpg" for number in range(len(self.frames))]
        places = [add(name, jpeg) for name, jpeg in zip(names, self.frames, strict=True)]
        sizes = [len(jpeg) for jpeg in self.frames]
        at, size = (None, None) if self.mp4 is None else (add(f"{name}.mp4", self.mp4), self.mp4.size)
        first, end = (places[0], places[-1] + sizes[-1]) if places else (at or 0, (at or 0) + (size or 0))
        columns = {
            "frames": len(self.frames),
            "frame_offsets": [place - first for place in places],
            "frame_sizes": sizes,
            "clip_offset": at,
            "clip_size": size,
            "duration_ms": self.facts["duration_ms"],
        }
        return "jpg" if places else "mp4", first, end - first, columns


def clip_of(data: Reader, duration_ms: int | None, sha256: str | None, kept: Kept, count: int, side: int) -> Clip:
    """`count` frames at the middles of equal parts of a video, fewer where one is shown at several of these times; or
    all packets in an mp4, which the file itself may be. `duration_ms` and `sha256` are the file's, if known. Raises
    Undecodable, or Reject with no_duration."""
    found = limited.probe(data)
    duration_ms = duration_ms or found.duration_ms
    if duration_ms is None:
        raise Reject("no_duration", "the header has no duration")
    mp4 = None
    if kept != "frames":
        whole = {"start_ms": 0, "stop_ms": duration_ms}
        mp4 = data if found.format == "mp4" and found.codec in COPYABLE else limited.extract(data, whole)
    facts: dict[str, Any] = {name: getattr(found, name) for name in ("width", "height", "format")}
    source = dict(facts)
    frames, jpegs = list[limited.Shown](), list[bytes]()
    if kept != "clip":
        for frame in limited.frames(mp4 or data, times_ms(duration_ms, count), side):
            if not frames or frame.ms != frames[-1].ms:
                frames.append(frame)
    if frames:
        height, width = frames[0].rgb.shape[:2]
        jpegs = [_jpeg(frame, (width, height)) for frame in frames]
        facts = {"width": width, "height": height, "format": "jpeg", "sha256": _digest(jpegs)}
        facts |= {"frames_ms": [frame.ms for frame in frames], "damaged": sum(frame.corrupt for frame in frames)}
    elif mp4 is not None:
        facts |= {"format": "mp4", "sha256": sha256 if mp4 is data else mp4.sha256()}
    facts |= {"media": "video", "duration_ms": duration_ms, "fps": found.fps, "has_audio": found.has_audio}
    return Clip(jpegs, mp4, facts, source)


def _jpeg(frame: limited.Shown, size: tuple[int, int]) -> bytes:
    sink, image = io.BytesIO(), Image.fromarray(frame.rgb)
    if image.size != size:  # a few streams change theirs
        image = image.resize(size, Image.Resampling.LANCZOS)
    image.save(sink, "JPEG", quality=QUALITY, subsampling=SUBSAMPLING)
    return sink.getvalue()


def _digest(parts: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
