"""What is known of a video after one pass over its frames."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from curate.kernels.perceptual import HASH_BYTES


@dataclass(frozen=True)
class Facts:
    """Fields are those of SCHEMA, whose metadata says what they are."""

    width: int
    height: int
    size_changes: int
    duration_ms: int
    frames: int
    i_frames: int
    corrupt_frames: int
    missing_frames: int
    cuts_ms: list[int]
    flashes: int
    black_ms: list[int]
    still_share: float | None
    bars: list[float]
    motion_mean: float | None
    motion_variance: float | None
    motion_peak: float | None
    camera_share: float | None
    source_motion_mean: float | None
    source_motion_variance: float | None
    frame_hashes: list[str | None]


_SPEED = "% of the width a second"
_TYPES: dict[str, tuple[pa.DataType, str]] = {
    "width": (pa.int32(), "pixels, upright, in the last frame"),
    "height": (pa.int32(), "pixels, upright, in the last frame"),
    "size_changes": (pa.int32(), "how often the size of frames changes"),
    "duration_ms": (pa.int64(), "end of the last frame"),
    "frames": (pa.int64(), "frames that are shown"),
    "i_frames": (pa.int64(), "key frames of the source's encoder"),
    "corrupt_frames": (pa.int64(), "frames that the decoder marks as damaged"),
    "missing_frames": (pa.int64(), "frames that could not be decoded"),
    "cuts_ms": (pa.list_(pa.int64()), "first frames after cuts, middles of dissolves"),
    "flashes": (pa.int32(), "bright or dark frames within a shot"),
    "black_ms": (pa.list_(pa.int64()), "start, stop, start, stop … of black stretches"),
    "still_share": (pa.float32(), "share of the time without change"),
    "bars": (pa.list_(pa.float32()), "black bars: left, top, right, bottom, as shares of the width or height"),
    "motion_mean": (pa.float32(), f"{_SPEED}: vectors at {320} pixels and 10 frames a second, over area and time"),
    "motion_variance": (pa.float32(), f"square of {_SPEED}, over area and time"),
    "motion_peak": (pa.float32(), f"{_SPEED}: largest mean of a second"),
    "camera_share": (pa.float32(), "share of the squared speed that pan, zoom and turn of the camera explain"),
    "source_motion_mean": (pa.float32(), "% of the width: the source's own vectors; null: its codec has none"),
    "source_motion_variance": (pa.float32(), "variance of these"),
    "frame_hashes": (pa.list_(pa.binary(HASH_BYTES)), "two a second; null: too little detail"),
}
SCHEMA = pa.schema([pa.field(name, kind, metadata={"of": of}) for name, (kind, of) in _TYPES.items()])
