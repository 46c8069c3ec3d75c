"""Videos through limited child processes: the only way to FFmpeg, which this process never loads.

A child reads what it needs through the worker's reader, so that a long film is never held in memory, and sends frames
one by one. All functions raise Undecodable with one of REASONS, and what the reader raises.
"""

from __future__ import annotations

import atexit
import io
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import TypeAdapter

from curate.codec.formats import webp_size
from curate.codec.frames import Frame
from curate.codec.images import OF_CHILD
from curate.codec.limited import NO_SENSE, answered, rejected
from curate.codec.video.containers import CONTAINERS, MAX_PIXELS, Probe
from curate.codec.video.containers import REASONS as OF_VIDEOS
from curate.core.child import Limits, Warm
from curate.core.errors import Reject, Undecodable
from curate.core.reader import Reader, as_reader
from curate.core.store.spill import Spilled

MEMORY_BYTES = 4 << 30
SECONDS = 3600.0
"""From beginning to end, with reading. FFmpeg's own time is limited by curate.codec.video.source.Budget."""
HEADER_BYTES = 1 << 16
MAX_SIZE = 1 << 31
"""Bytes that a copied span may have."""
HELD_BYTES = 32 << 20
"""Bytes of it that are kept in memory."""
REASONS = OF_VIDEOS | OF_CHILD

CHILD = "curate.codec.video.child"
HEAD = struct.Struct("!qII?")
"""Before a frame's RGB: time in ms, width, height, whether it is damaged."""
DONE, REJECT = b"+", b"-"
"""What each part of an answer begins with."""
FOUND: TypeAdapter[tuple[Probe, str | None]] = TypeAdapter(tuple[Probe, str | None])
_warm = Warm(f"{CHILD}:ready")
atexit.register(_warm.close)


@dataclass(frozen=True, eq=False)
class Shown:
    """The frame that is shown at a time."""

    ms: int
    """Since when."""
    rgb: NDArray[np.uint8]
    """Upright, height x width x 3."""
    corrupt: bool
    """Whether the decoder marks it as damaged."""


def stream(
    function: str, order: Mapping[str, Any], source: bytes | Reader, seconds: float = SECONDS, warm: Warm = _warm
) -> Iterator[bytes]:
    """What `module:function` yields in a child of a process that has imported the module, given a reader and the order
    as keywords."""
    payload = json.dumps({"function": function, "order": dict(order)}).encode()
    with closing(warm.stream(f"{CHILD}:answers", payload, Limits(seconds, MEMORY_BYTES), as_reader(source))) as parts:
        while True:
            try:
                part = next(parts)
            except StopIteration as end:
                answer = answered(end.value, seconds, "a video")
                break
            if part[:1] != DONE:
                raise rejected(part[1:], OF_VIDEOS)
            yield part[1:]
    if isinstance(answer, Reject):
        raise answer


def probe(source: bytes | Reader, seconds: float = SECONDS) -> Probe:
    """Properties from the header and the first frame."""
    return inspect(source, 0, (), seconds)[0]


def inspect(
    source: bytes | Reader, most: int, languages: Sequence[str] = (), seconds: float = SECONDS
) -> tuple[Probe, str | None]:
    """Properties, and at most `most` characters of a subtitle track: see curate.codec.video.subtitles."""
    data = bytearray()
    for part in stream(f"{CHILD}:probe", {"most": most, "languages": list(languages)}, source, seconds):
        data += part
        if len(data) > HEADER_BYTES + 4 * most:
            raise NO_SENSE
    try:
        found, text = FOUND.validate_json(bytes(data), strict=True)
    except ValueError:
        raise NO_SENSE from None
    if found.format not in CONTAINERS or min(found.width, found.height) <= 0 or len(text or "") > most:
        raise NO_SENSE
    return found, text


def frames(
    source: bytes | Reader, times_ms: Sequence[int], side: int | None = None, seconds: float = SECONDS
) -> Iterator[Shown]:
    """The frame at each time (ascending), which is the one that decoding the whole video shows then: the first before
    the beginning, and the last after the end. side: the shorter side of what is returned; never enlarged."""
    times = list(times_ms)
    if times != sorted(times):
        raise ValueError("the times of frames are not ascending")
    parts = stream(f"{CHILD}:frames", {"times_ms": times, "side": side}, source, seconds)
    count = 0
    for count, head in enumerate(parts, 1):
        if len(head) != HEAD.size or count > len(times):
            raise NO_SENSE
        ms, width, height, corrupt = HEAD.unpack(head)
        rgb = _sized(parts, width * height * 3)
        yield Shown(ms, np.frombuffer(rgb, np.uint8).reshape(height, width, 3), corrupt)
    if count < len(times):
        raise NO_SENSE


def _sized(parts: Iterator[bytes], size: int) -> bytearray:
    data = bytearray()
    while 0 < size <= 3 * MAX_PIXELS and len(data) < size:
        data += next(parts, b"") or bytes(size + 1)
    if len(data) != size:
        raise NO_SENSE
    return data


def shown(source: bytes | Reader, times: Sequence[float], seconds: float = SECONDS) -> Iterator[Frame]:
    """The frame at each time (seconds, ascending), as a PNG."""
    times_ms = [int(time * 1000 + 1e-6) for time in times]
    for frame in frames(source, times_ms, None, seconds):
        sink = io.BytesIO()
        Image.fromarray(frame.rgb).save(sink, "PNG", compress_level=1)
        yield Frame({"ms": frame.ms}, sink.getvalue(), "png", len(times))


def extract(source: bytes | Reader, span: Mapping[str, Any], seconds: float = SECONDS) -> Reader:
    """An mp4 of {"start_ms", "stop_ms"}, the same bytes each time: see curate.codec.video.extract. Above HELD_BYTES it
    is in an unnamed file."""
    data, rest = bytearray(), None
    for part in stream(f"{CHILD}:extract", {"span": dict(span)}, source, seconds):
        if rest is None and len(data) + len(part) <= HELD_BYTES:
            data += part
            continue
        if rest is None:
            rest = Spilled(bytes(data))
        rest.append(part)
        if rest.size > MAX_SIZE:
            raise NO_SENSE
    return rest or Reader(bytes(data))


def extracted(source: bytes | Reader, spans: Sequence[Mapping[str, Any]]) -> Iterator[Reader | Undecodable]:
    """The mp4 of each span, or why it cannot be copied."""
    for span in spans:
        try:
            yield extract(source, span)
        except Undecodable as why:
            yield why


def thumbnail(source: bytes | Reader, side: int, frames: int = 1, seconds: float = SECONDS) -> bytes:
    """A WebP of `frames` frames side by side, the middles of equal parts of the video, of at most `side` pixels a side
    each."""
    small = b"".join(stream(f"{CHILD}:thumbnail", {"side": side, "frames": frames}, source, seconds))
    if small[:4] != b"RIFF" or small[8:12] != b"WEBP":
        raise NO_SENSE
    width, height = webp_size(small)
    if width % frames or not 0 < max(width // frames, height) <= side:
        raise NO_SENSE
    return small
