"""A tiny pool with every kind of row, as a source and as files for the sources of `curate.acquire`."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from curate.codec.tars import TarWriter
from curate.core.contracts import Incoming, Portion, Source

FAMILIES, ROWS, SIDE = 4, 24, 48


@cache
def image_bytes(number: int) -> bytes:
    """A BMP: one of four patterns in its own colours, with noise; integers only, so that all platforms agree."""
    family, y, x = number % FAMILIES, *np.mgrid[0:SIDE, 0:SIDE]
    stripes = [x, y, x + y, (x // 12) ^ (y // 12)][family] // (6, 8, 10, 1)[family] % 2
    noise = np.frombuffer(hashlib.shake_128(str(number).encode()).digest(SIDE * SIDE * 3), dtype=np.uint8)
    colours = np.array([[60, 90, 130], [150, 60, 40], [40, 140, 60], [120, 120, 20]])[family]
    pixels = stripes[..., None] * 90 + colours + noise.reshape(SIDE, SIDE, 3) // 8
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "BMP")
    return out.getvalue()


CAPTIONS = (
    "a pattern",
    None,
    "  see &amp; buy at https://example.org/x  ",
    "",
    "mail me@example.org",
    "Stri\u0301pes\n<b>b</b>",
)


@cache
def animation() -> bytes:
    """A GIF of three frames."""
    frames = [Image.open(io.BytesIO(image_bytes(number))).quantize(8) for number in range(3)]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=100)
    return out.getvalue()


def samples() -> Iterator[Incoming]:
    """24 rows: images, among them an exact copy, a truncated one, bytes that are not an image, an empty file and an
    animation."""
    for number in range(ROWS):
        data = {5: image_bytes(1), 9: image_bytes(9)[:400], 14: b"no picture", 19: b"", 21: animation()}
        about = {"caption": CAPTIONS[number % len(CAPTIONS)], "meta": {"category": f"family/{number % FAMILIES}"}}
        ext = "gif" if number == 21 else "bmp"
        yield Incoming(f"{number:03d}", ext=ext, data=data.get(number, image_bytes(number)), **about)


class Mixed(Source):
    """The samples, in shards of `shard_rows`, with an empty shard and a shard of rejected rows between them."""

    op: ClassVar[str] = "contract.mixed"
    shard_rows: int = 8
    alive: bool = True

    def plan(self) -> list[Portion]:
        starts = range(0, ROWS, self.shard_rows)
        real = [Portion({"start": start, "kind": "real"}, self.shard_rows) for start in starts]
        return [real[0], Portion({"kind": "empty"}, 0), Portion({"kind": "refused"}, 3), *real[1:]]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        if portion.content["kind"] == "refused":
            yield from (Incoming(f"refused-{i}", ext="bmp", data=image_bytes(i), reject="unwanted") for i in range(3))
        if portion.content["kind"] == "real":
            start = portion.content["start"]
            for incoming in list(samples())[start : start + self.shard_rows]:
                incoming.reject = None if self.alive else "unwanted"
                yield incoming


def folder(place: Path) -> dict[str, Any]:
    """The samples as files with sidecars."""
    for incoming in samples():
        path = place / incoming.meta["category"] / f"{incoming.source_id}.{incoming.ext}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(incoming.data or b"")
        if incoming.caption is not None:
            path.with_suffix(".txt").write_text(incoming.caption, encoding="utf-8")
    return {"path": str(place), "shard_rows": 10}


def tars(place: Path) -> dict[str, Any]:
    for shard in range(2):
        with open(place / f"{shard:05d}.tar", "wb") as file, TarWriter(file) as tar:
            for incoming in list(samples())[shard * 12 : shard * 12 + 12]:
                tar.add(f"{incoming.source_id}.{incoming.ext}", incoming.data or b"")
                tar.add(f"{incoming.source_id}.json", json.dumps({"caption": incoming.caption}).encode())
    return {"path": str(place)}


def table(place: Path) -> dict[str, Any]:
    rows = [{"id": s.source_id, "image": s.data, "caption": s.caption} | s.meta for s in samples()]
    pq.write_table(pa.Table.from_pylist(rows), place / "rows.parquet")
    return {"path": str(place / "rows.parquet"), "image": "image", "caption": "caption", "id": "id", "shard_rows": 10}


def urls(place: Path) -> dict[str, Any]:
    """URLs and captions of the samples, some twice, and rows that cannot be fetched."""
    rows = [{"url": f"http://example.org/{s.source_id}", "caption": s.caption} | s.meta for s in samples()]
    rows += [rows[0], rows[1] | {"caption": "another"}, rows[2] | {"url": "file:///etc/passwd"}, {"url": None}]
    (place / "urls.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return {"path": str(place / "urls.jsonl"), "portion_rows": 10}


SOURCES = {"acquire.folder": folder, "acquire.webdataset": tars, "acquire.parquet": table, "acquire.list": urls}
"""Op -> function that writes the samples into a folder and returns the parameters to acquire them."""
