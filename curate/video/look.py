"""`video.look`: all that is known of a video by looking at its frames, in one pass."""

from __future__ import annotations

import atexit
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import Field, TypeAdapter

from curate.codec.limited import NO_SENSE
from curate.codec.video.containers import MAX_CORRUPT
from curate.codec.video.limited import stream
from curate.core.child import Warm
from curate.core.contracts import Batch, Map, Runtime, Sample
from curate.core.reader import Reader
from curate.video.facts import SCHEMA, Facts

CHILD = "curate.video.looking"
SECONDS = 3600.0
MOST_BYTES = 64 << 20
"""The largest answer of a child: about ten days of video."""
_FACTS = TypeAdapter(Facts)
_warm = Warm(f"{CHILD}:ready")
atexit.register(_warm.close)


class Look(Map):
    """Decode each video once, and measure cuts, motion, black, bars and stillness; hash its frames.

    Unusable: truncated, corrupt, no_timestamps, and the codec's other reasons.
    """

    op: ClassVar[str] = "video.look"
    sees: ClassVar[tuple[str, ...]] = ("video",)
    pixels: ClassVar[bool] = True
    costly: ClassVar[bool] = True
    batch_rows: ClassVar[int] = 8

    max_corrupt: float = Field(
        MAX_CORRUPT, ge=0, le=1, description="Share of damaged and missing frames above which a video is corrupt."
    )
    threads: Annotated[int, Runtime(), Field(ge=1, description="Videos decoded at a time.")] = 2

    def schema(self) -> pa.Schema:
        return SCHEMA

    def prepare(self, sample: Sample) -> Facts:
        return facts(sample.reader, self.max_corrupt)

    def process(self, batch: Batch) -> dict[str, Any]:
        columns = {name: [getattr(one, name) for one in batch.prepared] for name in SCHEMA.names}
        columns["frame_hashes"] = [[found and bytes.fromhex(found) for found in row] for row in columns["frame_hashes"]]
        return columns


def facts(source: bytes | Reader, max_corrupt: float = MAX_CORRUPT, seconds: float = SECONDS) -> Facts:
    """Looks at a video in a limited child. Raises Undecodable with one of curate.codec.video.limited.REASONS."""
    data = bytearray()
    for part in stream(f"{CHILD}:look", {"max_corrupt": max_corrupt}, source, seconds, _warm):
        data += part
        if len(data) > MOST_BYTES:
            raise NO_SENSE
    try:
        return _FACTS.validate_json(bytes(data), strict=True)
    except ValueError:
        raise NO_SENSE from None
