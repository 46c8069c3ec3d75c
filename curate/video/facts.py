"""What is known of a video after one pass over its frames."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from curate.kernels.perceptual import HASH_BYTES

_SPEED = "% of the width a second"


def _column(kind: pa.DataType, of: str) -> Any:
    return field(metadata={"column": pa.field("", kind, metadata={"of": of})})


@dataclass(frozen=True)
class Facts:
    """Each field is a column of SCHEMA."""

    width: int = _column(pa.int32(), "pixels, upright")
    height: int = _column(pa.int32(), "pixels, upright")
    duration_ms: int = _column(pa.int64(), "end of the last frame")
    frames: int = _column(pa.int64(), "frames that are shown")
    i_frames: int = _column(pa.int64(), "key frames of the source's encoder")
    corrupt_frames: int = _column(pa.int64(), "frames that the decoder marks as damaged")
    missing_frames: int = _column(pa.int64(), "frames that could not be decoded")
    cuts_ms: list[int] = _column(pa.list_(pa.int64()), "first frames after cuts, middles of dissolves")
    flashes: int = _column(pa.int32(), "bright or dark frames within a shot")
    black_ms: list[int] = _column(pa.list_(pa.int64()), "start, stop, start, stop … of black stretches")
    still_share: float | None = _column(pa.float32(), "share of the time without change")
    bars: list[float] = _column(
        pa.list_(pa.float32()), "black bars: left, top, right, bottom, as shares of the width or height"
    )
    motion_mean: float | None = _column(
        pa.float32(), f"{_SPEED}: vectors at 320 pixels and 10 frames a second, over area and time"
    )
    motion_variance: float | None = _column(pa.float32(), f"square of {_SPEED}, over area and time")
    motion_peak: float | None = _column(pa.float32(), f"{_SPEED}: largest mean of a second")
    camera_share: float | None = _column(
        pa.float32(), "share of the squared speed that pan, zoom and turn of the camera explain"
    )
    source_motion_mean: float | None = _column(
        pa.float32(), "% of the width: the source's own vectors; null: its codec has none"
    )
    source_motion_variance: float | None = _column(pa.float32(), "variance of these")
    frame_hashes: list[str | None] = _column(
        pa.list_(pa.binary(HASH_BYTES)), "two a second; null: too little detail"
    )


SCHEMA = pa.schema([one.metadata["column"].with_name(one.name) for one in fields(Facts)])
