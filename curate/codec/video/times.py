"""The times at which frames of a video are taken."""

from __future__ import annotations

from curate.codec.video.limited import probe
from curate.core.errors import Reject
from curate.core.reader import Reader


def times_ms(duration_ms: int, count: int, every_ms: int | None = None) -> list[int]:
    """Middles of `count` equal parts of a video, or of fewer parts if each would be shorter than `every_ms`."""
    if every_ms and every_ms * count > duration_ms:
        return list(range(every_ms // 2, duration_ms, every_ms)) or [duration_ms // 2]
    return [(2 * part + 1) * duration_ms // (2 * count) for part in range(count)]


def duration_of(reader: Reader) -> int:
    """Milliseconds, from the header. Raises Undecodable, or Reject with no_duration."""
    found = probe(reader).duration_ms
    if found is None:
        raise Reject("no_duration", "the header has no duration")
    return found
