"""A pool of videos in memory, with facts of `video.look` and `video.divide`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from curate.core.hashing import make_key
from curate.core.ledger import Entry
from tests.codec.video.make_videos import video
from tests.report.memory_view import TYPES, MemoryView, manifest

MS, SHARE = pa.int64(), pa.float32()
COLUMNS = ("key", "source_id", "width", "height", "format", "meta", "rejected_by", "reject_reason", "copies")
VIDEO_TYPES: dict[str, pa.DataType] = {name: TYPES[name] for name in COLUMNS}
VIDEO_TYPES |= {
    "media": pa.string(),
    "duration_ms": MS,
    "span": pa.string(),
    "motion_mean": SHARE,
    "still_share": SHARE,
}
VIDEO_TYPES |= dict.fromkeys(("cuts_ms", "black_ms", "clips_ms"), pa.list_(MS))
FATES = ("kept", "short", "trimmed", "black", "rejected")
VIDEO_TYPES |= {f"clips_{fate}_ms": MS for fate in FATES}
FILM = ("mp4 h264", 60)
"""It takes 2.4 seconds."""


def row(name: str, rejected: tuple[str, str] | None = None, **facts: Any) -> dict[str, Any]:
    stage, reason = rejected or (None, None)
    made = {"key": make_key("videos", name), "source_id": name, "media": "video", "duration_ms": 2_400}
    return made | {"copies": int(stage is None), "rejected_by": stage, "reject_reason": reason} | facts


def divided(**ms: int) -> dict[str, int]:
    return {f"clips_{fate}_ms": ms.get(fate, 0) for fate in FATES}


def film_pool(more: Sequence[dict[str, Any]] = ()) -> MemoryView:
    """Two videos that pass, one that a filter rejected, one that `look` found corrupt, and one whose bytes are gone."""
    data = video(*FILM)
    cut = {"cuts_ms": [1_000], "black_ms": [1_000, 1_400], "clips_ms": [0, 1_000], "motion_mean": 3.0}
    rows = [
        row("one.mp4", **cut, still_share=0.5, **divided(kept=1_000, black=400, short=900, trimmed=100)),
        row("two.mp4", cuts_ms=[], black_ms=[], clips_ms=[0, 2_400], motion_mean=30.0, **divided(kept=2_400)),
        row("still.mp4", ("moving", "still"), motion_mean=0.1, duration_ms=61_000),
        row("corrupt.mp4", ("look", "truncated"), duration_ms=None),
        row("lost.mp4", cuts_ms=[], black_ms=[], clips_ms=[0, 2_400], **divided(kept=2_400)),
        *more,
    ]
    encoded = {one["key"]: data for one in rows if one["source_id"] != "lost.mp4"}
    encoded[make_key("videos", "corrupt.mp4")] = data[: len(data) // 3]
    stages, live = {}, len(rows)
    ops = {"pool": "acquire.folder", "look": "video.look", "moving": "filter.where", "divide": "video.divide"}
    for stage, op in ops.items():
        lost = [one["reject_reason"] for one in rows if one["rejected_by"] == stage]
        entry = Entry(live, after=live - len(lost))
        entry.rejected.update(lost)
        stages[stage], live = manifest("pool" if stage == "pool" else "columns", op, entry), entry.after
    return MemoryView(rows, stages, encoded, types=VIDEO_TYPES)
