"""Decodes images in limited child processes, which crash and hang alone: they have no network, and see no file."""

from __future__ import annotations

import atexit
import io
import json
from dataclasses import asdict

from PIL import Image

from curate.codec import images
from curate.codec.images import Probe
from curate.core.child import Limits, Reader, Warm
from curate.core.errors import Reject, Undecodable

MEMORY_BYTES = 2 << 30
"""Several times the pixels of the largest image that is decoded, 300 MB."""
SECONDS = 10.0

REASONS = images.REASONS | {
    "decoder_died": "the process that decoded the file crashed, or needed too much memory",
    "decoder_timeout": "decoding took too long",
}

DECODED = f"{__name__}:decoded"
_warm = Warm(f"{__name__}:ready")
atexit.register(_warm.close)


def thumbnail(source: bytes | Reader, side: int, deadline_seconds: float = SECONDS) -> bytes | Reject:
    """A WebP of at most `side` pixels a side, never enlarged; or why there is none, one of REASONS."""
    return _call(side, source, deadline_seconds)


def probe(source: bytes | Reader, deadline_seconds: float = SECONDS) -> Probe | Reject:
    """Properties from the header; or why there are none, one of REASONS."""
    found = _call(0, source, deadline_seconds)
    if isinstance(found, Reject):
        return found
    try:
        return Probe(**json.loads(found))
    except (ValueError, TypeError):
        return Undecodable("decoder_died", "the process gave an answer that makes no sense")


def _call(side: int, source: bytes | Reader, seconds: float) -> bytes | Reject:
    data, reader = (source, None) if isinstance(source, bytes) else (b"", source)
    payload = json.dumps({"side": side}).encode() + b"\n" + data
    ended = _warm.call(DECODED, payload, Limits(seconds, MEMORY_BYTES), reader)
    if ended.answer is None:
        return Undecodable("decoder_timeout" if ended.how == "timeout" else "decoder_died", ended.detail)
    kind, _, said = ended.answer.partition(b"\n")
    if kind == b"done":
        return said
    reason, _, detail = said.decode(errors="replace").partition("\n")
    known = reason in images.REASONS
    return Undecodable(reason, detail[:1000]) if known else Undecodable("decoder_died", "an answer without sense")


# --- in the child ---


def decoded(payload: bytes, source: Reader) -> bytes:
    order, _, data = payload.partition(b"\n")
    side = json.loads(order)["side"]
    try:
        data = data or source.read_at(0, source.size)
        return b"done\n" + (images.thumbnail(data, side) if side else json.dumps(asdict(images.probe(data))).encode())
    except Reject as error:
        return f"reject\n{error.reason}\n{error.detail}".encode(errors="replace")


def ready() -> None:
    """Load what Pillow loads late, while files can still be opened."""
    Image.init()
    Image.new("RGB", (8, 8)).save(io.BytesIO(), "WEBP")
