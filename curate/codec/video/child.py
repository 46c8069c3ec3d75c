"""What the limited child processes of curate.codec.video.limited do."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import av
from PIL import Image

from curate.codec import images, limited
from curate.codec.video import exact, subtitles
from curate.codec.video import extract as copies
from curate.codec.video import probe as header
from curate.codec.video.limited import DONE, HEAD, REJECT
from curate.codec.video.source import Budget, Input
from curate.codec.video.times import times_ms
from curate.core.errors import Reject

PART_BYTES = 8 << 20


def answers(payload: bytes, source: Input) -> Iterator[bytes]:
    """What a function yields, and the reason if it stops."""
    order = json.loads(payload)
    module, _, name = order["function"].partition(":")
    try:
        for part in getattr(importlib.import_module(module), name)(source, **order["order"]):
            yield DONE + part
    except Reject as error:
        yield REJECT + limited.said_of(error)


def probe(source: Input, most: int, languages: list[str]) -> Iterator[bytes]:
    found = asdict(header.probe(source))
    text = subtitles.text(source, languages, most) if most else None
    yield from _parts(json.dumps([found, text], ensure_ascii=False).encode())


def frames(source: Input, times_ms: list[int], side: int | None) -> Iterator[bytes]:
    for picture in exact.shown(source, times_ms):
        rgb = picture.planes.rgb(side)
        height, width = rgb.shape[:2]
        yield HEAD.pack(picture.ms, width, height, picture.corrupt)
        yield from _parts(rgb.tobytes())


def extract(source: Input, span: dict[str, Any]) -> Iterator[bytes]:
    yield from _parts(copies.extract(source, span))


def thumbnail(source: Input, side: int, frames: int) -> Iterator[bytes]:
    budget = Budget()
    times = times_ms(header.probe(source, budget).duration_ms or 0, frames)
    shown = (Image.fromarray(picture.planes.rgb(2 * side)) for picture in exact.shown(source, times, budget))
    stills = [images.shrunk(image, side) for image in shown]
    width, height = stills[0].size
    sheet = Image.new("RGB", (frames * width, height))
    for place, still in enumerate(stills):
        sheet.paste(still if still.size == (width, height) else still.resize((width, height)), (place * width, 0))
    yield images.webp(sheet)


def _parts(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]


def ready() -> None:
    """Load what Pillow and PyAV load late, while files can still be opened."""
    limited.ready()
    for module in pkgutil.walk_packages(av.__path__, "av."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
