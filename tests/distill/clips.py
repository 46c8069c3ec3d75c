"""Writes packed datasets of images and clips, as `pack.webdataset` does (docs/formats.md)."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from curate.codec.tars import TarWriter
from curate.core.hashing import make_key

SMALL = {"shard": pa.int32(), "row": pa.int32(), "copy": pa.int32(), "width": pa.int32(), "height": pa.int32()}
CLIPS = {
    "frames": pa.int16(), "frame_offsets": pa.list_(pa.int32()), "frame_sizes": pa.list_(pa.int32()),
    "clip_offset": pa.int64(), "clip_size": pa.int64(), "duration_ms": pa.int64(),
}  # fmt: skip


def frame(number: int, width: int = 32, height: int = 24, *, quality: int = 95) -> bytes:
    """A JPEG of one of 256 colours, with a darker half that moves."""
    pixels = np.full((height, width, 3), (number * 37 % 256, number * 11 % 256, number), dtype=np.uint8)
    pixels[:, : 1 + number % (width - 1)] //= 2
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def clip(number: int, frames: int, width: int = 32, height: int = 24) -> list[bytes]:
    return [frame(number * 16 + place, width, height) for place in range(frames)]


def write_clips(
    folder: Path,
    samples: Sequence[list[bytes]],
    *,
    shard_rows: int = 4,
    size: tuple[int, int] = (32, 24),
    texts: Sequence[str] = (),
    with_mp4: bool = False,
    keys: Sequence[str] = (),
) -> Path:
    """samples: the frames of each; a single one is an image. size: of all of them."""
    folder.mkdir(parents=True)
    rows, sizes = [], {}
    for shard, start in enumerate(range(0, len(samples), shard_rows)):
        tar = f"clips-{shard:06d}.tar"
        with (folder / tar).open("wb") as file, TarWriter(file) as writer:
            for row, frames in enumerate(samples[start : start + shard_rows]):
                number = start + row
                key = keys[number] if keys else make_key("clips", str(number))
                name = f"{key}-0-0"
                single = len(frames) == 1
                ends = [".jpg"] if single else [f".{place:02d}.jpg" for place in range(len(frames))]
                places = [writer.add(name + end, data) for end, data in zip(ends, frames, strict=True)]
                last = places[-1] + len(frames[-1])
                mp4 = writer.add(f"{name}.mp4", b"not decoded" * 99) if with_mp4 and not single else None
                text = texts[number].encode() if texts else b""
                at = writer.add(f"{name}.txt", text) if texts else -1
                writer.add(f"{name}.json", json.dumps({"key": key, "title": f"title {number}"}).encode())
                rows.append({
                    "shard": shard, "row": row, "name": name, "key": key, "item": "0", "copy": 0, "ext": "jpg",
                    "offset": places[0], "size": last - places[0], "text_offset": at, "text_size": len(text),
                    "width": size[0], "height": size[1], "frames": None if single else len(frames),
                    "frame_offsets": None if single else [place - places[0] for place in places],
                    "frame_sizes": None if single else [len(data) for data in frames],
                    "clip_offset": mp4, "clip_size": None if mp4 is None else 99 * 11,
                    "duration_ms": None if single else 1000, "number": number,
                })  # fmt: skip
        sizes[tar] = min(shard_rows, len(samples) - start)
    table = pa.Table.from_pylist(rows)
    fields = [pa.field(item.name, (SMALL | CLIPS).get(item.name, item.type)) for item in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), folder / "index.parquet")
    (folder / "sizes.json").write_text(json.dumps(sizes))
    (folder / "manifest.json").write_text(json.dumps({"noun": "dataset", "rows": len(samples)}))
    return folder
