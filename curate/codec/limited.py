"""Decodes images in limited child processes, which crash and hang alone: they have no network, and see no file."""

from __future__ import annotations

import atexit
import io
import json
from collections.abc import Container, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict

from PIL import Image
from pydantic import TypeAdapter

from curate.codec import images
from curate.codec.formats import DECODED, webp_size
from curate.codec.images import Probe
from curate.core.child import Ended, Limits, Reader, Warm
from curate.core.errors import Reject, StorageError, Undecodable

MEMORY_BYTES = 4 << 30
"""Several times the pixels of the largest image that is decoded: 400 MB in floating point, and copies."""
SECONDS = 10.0
PART_BYTES = 8 << 20
"""Bytes of pixels that a child sends at a time."""

REASONS = images.REASONS

CHILD = f"{__name__}:decoded"
PROBE = TypeAdapter(Probe)
NO_SENSE = Undecodable("decoder_died", "the process gave an answer that makes no sense")
_warm = Warm(f"{__name__}:ready")
atexit.register(_warm.close)


def thumbnail(source: bytes | Reader, side: int, deadline_seconds: float = SECONDS) -> bytes | Reject:
    """A WebP of at most `side` pixels a side, never enlarged; or why there is none, one of REASONS."""
    return _thumbnail(_call(side, source, deadline_seconds), side)


def _thumbnail(small: bytes | Reject, side: int) -> bytes | Reject:
    if isinstance(small, Reject):
        return small
    webp = small[:4] == b"RIFF" and small[8:12] == b"WEBP"
    return small if webp and 0 < max(webp_size(small)) <= side else NO_SENSE


def thumbnails(sources: Sequence[bytes], side: int) -> Iterator[bytes | Reject]:
    """`thumbnail` of each, in one process, which costs less. If it ends early, each of the others has a new one."""
    order = {"side": side, "sizes": [len(data) for data in sources]}
    payload = json.dumps(order).encode() + b"\n" + b"".join(sources)
    made = 0
    with closing(_warm.stream(f"{__name__}:decoded_all", payload, Limits(SECONDS, MEMORY_BYTES))) as answers:
        for answer in answers:
            made += 1
            yield _thumbnail(_said(answer), side)
    yield from (thumbnail(data, side) for data in sources[made:])


def probe(source: bytes | Reader, deadline_seconds: float = SECONDS) -> Probe | Reject:
    """Properties from the header; or why there are none, one of REASONS."""
    found = _call(0, source, deadline_seconds)
    if isinstance(found, Reject):
        return found
    try:
        probed = PROBE.validate_json(found, strict=True)
    except ValueError:
        return NO_SENSE
    return probed if probed.format in DECODED and min(probed.width, probed.height, probed.frames) > 0 else NO_SENSE


def decode(data: bytes, max_pixels: int, srgb: bool) -> Image.Image:
    """What `images.decode` returns. Raises Undecodable with one of REASONS."""
    payload = json.dumps({"max_pixels": max_pixels, "srgb": srgb}).encode() + b"\n" + data
    with closing(_warm.stream(f"{__name__}:pixels", payload, Limits(SECONDS, MEMORY_BYTES))) as answers:
        parts, ended = _all(answers)
    whole = answered(ended, SECONDS, "an image")
    first = whole if isinstance(whole, Reject) else _said(parts[0]) if parts else NO_SENSE
    if isinstance(first, Reject):
        raise first
    width, height = (int(side) for side in first.split())
    rows = b"".join(parts[1:])
    if not 0 < 3 * width * height == len(rows):
        raise NO_SENSE
    return Image.frombytes("RGB", (width, height), rows)


def _all(answers: Generator[bytes, None, Ended]) -> tuple[list[bytes], Ended]:
    parts = list[bytes]()
    while True:
        try:
            parts.append(next(answers))
        except StopIteration as end:
            return parts, end.value


def _call(side: int, source: bytes | Reader, seconds: float) -> bytes | Reject:
    data, reader = (source, None) if isinstance(source, bytes) else (b"", source)
    payload = json.dumps({"side": side}).encode() + b"\n" + data
    answer = answered(_warm.call(CHILD, payload, Limits(seconds, MEMORY_BYTES), reader), seconds, "an image")
    return answer if isinstance(answer, Reject) else _said(answer)


def _said(answer: bytes) -> bytes | Reject:
    kind, _, said = answer.partition(b"\n")
    return said if kind == b"done" else rejected(said, images.REASONS)


def answered(ended: Ended, seconds: float, what: str) -> bytes | Reject:
    """The answer of a child; or why there is none. Raises StorageError if most of its time went into reading."""
    if ended.how == "timeout" and ended.read_seconds > seconds / 2:
        raise StorageError(f"reading {what} took {ended.read_seconds:.1f} s of {seconds:g} s; expected less: try again")
    if ended.answer is None:
        return Undecodable("decoder_timeout" if ended.how == "timeout" else "decoder_died", ended.detail)
    return ended.answer


def rejected(said: bytes, reasons: Container[str]) -> Undecodable:
    """The reason and detail that a child has sent, if it is a known one."""
    reason, _, detail = said.decode(errors="replace").partition("\n")
    return Undecodable(reason, detail[:1000]) if reason in reasons else NO_SENSE


# --- in the child ---


def decoded(payload: bytes, source: Reader) -> bytes:
    order, _, data = payload.partition(b"\n")
    side = json.loads(order)["side"]
    try:
        data = data or source.read_at(0, source.size)
        if side:
            return b"done\n" + images.thumbnail(data, side, here=True)
        return b"done\n" + json.dumps(asdict(images.probe(data, here=True))).encode()
    except Reject as error:
        return b"reject\n" + said_of(error)


def decoded_all(payload: bytes, source: Reader) -> Iterator[bytes]:
    order, _, data = payload.partition(b"\n")
    about, start = json.loads(order), 0
    for size in about["sizes"]:
        one, start = data[start : start + size], start + size
        yield decoded(json.dumps({"side": about["side"]}).encode() + b"\n" + one, source)


def pixels(payload: bytes, source: Reader) -> Iterator[bytes]:
    """Width and height, and then the rows."""
    order, _, data = payload.partition(b"\n")
    about = json.loads(order)
    try:
        image = images.decode(data, about["max_pixels"], srgb=about["srgb"], here=True)
    except Reject as error:
        yield b"reject\n" + said_of(error)
        return
    yield b"done\n%d %d" % image.size
    rows = max(1, PART_BYTES // (3 * image.width))
    for top in range(0, image.height, rows):
        yield image.crop((0, top, image.width, min(top + rows, image.height))).tobytes()


def said_of(error: Reject) -> bytes:
    """What `rejected` reads."""
    return f"{error.reason}\n{error.detail}".encode(errors="replace")


def ready() -> None:
    """Load what is loaded late, while files can still be opened."""
    import pi_heif  # noqa: F401
    import pylibjxl.pillow_plugin  # noqa: F401

    Image.init()
    Image.new("RGB", (8, 8)).save(io.BytesIO(), "WEBP")
