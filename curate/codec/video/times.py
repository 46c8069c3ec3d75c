"""The times at which frames of a video are taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curate.codec.video.limited import probe
from curate.core.errors import Reject
from curate.core.reader import Reader


def times_ms(duration_ms: int, count: int, every_ms: int | None = None) -> list[int]:
    """Middles of `count` equal parts of a video, or of fewer parts if each would be shorter than `every_ms`."""
    if every_ms and every_ms * count > duration_ms:
        return list(range(every_ms // 2, duration_ms, every_ms)) or [duration_ms // 2]
    return [(2 * part + 1) * duration_ms // (2 * count) for part in range(count)]


def duration_of(reader: Reader, row: Mapping[str, Any]) -> int:
    """Milliseconds: those of `video.look` in the row, or else the header's. Raises Undecodable, or Reject with
    no_duration."""
    found = row.get("duration_ms") or probe(reader).duration_ms
    if not found:
        raise Reject("no_duration", "the header has no duration; put video.look before, which measures it")
    return int(found)
