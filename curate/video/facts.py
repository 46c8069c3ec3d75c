"""What is known of a video after one pass over its frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple, get_type_hints

import pyarrow as pa

from curate.kernels.perceptual import HASH_BYTES


class Column(NamedTuple):
    kind: pa.DataType
    of: str


_SPEED = "% of the width a second"
_COUNT, _SHARE, _TIMES = pa.int64(), pa.float32(), pa.list_(pa.int64())


@dataclass(frozen=True)
class Facts:
    """Each field is a column of SCHEMA."""

    width: Annotated[int, Column(pa.int32(), "pixels, upright, in the last frame")]
    height: Annotated[int, Column(pa.int32(), "pixels, upright, in the last frame")]
    size_changes: Annotated[int, Column(pa.int32(), "how often the size of frames changes")]
    duration_ms: Annotated[int, Column(_COUNT, "end of the last frame")]
    frames: Annotated[int, Column(_COUNT, "frames that are shown")]
    i_frames: Annotated[int, Column(_COUNT, "frames of the source that refer to no other")]
    corrupt_frames: Annotated[int, Column(_COUNT, "frames that the decoder marks as damaged")]
    missing_frames: Annotated[int, Column(_COUNT, "frames that could not be decoded")]
    cuts_ms: Annotated[list[int], Column(_TIMES, "first frames after cuts, middles of dissolves")]
    flashes: Annotated[int, Column(pa.int32(), "bright or dark frames within a shot")]
    black_ms: Annotated[list[int], Column(_TIMES, "start, stop, start, stop … of black stretches")]
    still_share: Annotated[float | None, Column(_SHARE, "share of the time without change")]
    bars: Annotated[
        list[float], Column(pa.list_(_SHARE), "black bars: left, top, right, bottom, as shares of the width or height")
    ]
    motion_mean: Annotated[
        float | None, Column(_SHARE, f"{_SPEED}: vectors at 320 pixels and 10 frames a second, over area and time")
    ]
    motion_variance: Annotated[float | None, Column(_SHARE, f"square of {_SPEED}, over area and time")]
    motion_peak: Annotated[
        float | None, Column(_SHARE, f"{_SPEED}: largest mean of a second, without the moments of cuts")
    ]
    camera_share: Annotated[
        float | None, Column(_SHARE, "share of the squared speed that pan, zoom and turn of the camera explain")
    ]
    source_motion_mean: Annotated[
        float | None, Column(_SHARE, "% of the width: the source's own vectors; null: its codec has none")
    ]
    source_motion_variance: Annotated[float | None, Column(_SHARE, "variance of these")]
    frame_hashes: Annotated[
        list[str | None],
        Column(pa.list_(pa.binary(HASH_BYTES)), "two a second while they change; null: too little detail"),
    ]


_HINTS = get_type_hints(Facts, include_extras=True)
_COLUMNS: dict[str, Column] = {name: hint.__metadata__[0] for name, hint in _HINTS.items()}
SCHEMA = pa.schema([pa.field(name, one.kind, metadata={"of": one.of}) for name, one in _COLUMNS.items()])
