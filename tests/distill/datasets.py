"""Draws images and writes them as packed datasets (docs/formats.md)."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

from curate.codec.tars import TarWriter
from curate.core.hashing import make_key


@dataclass
class Item:
    data: bytes
    width: int | None
    height: int | None
    key: str = ""
    copy: int = 0
    columns: dict[str, Any] = field(default_factory=dict)


def write_dataset(
    folder: Path,
    items: Sequence[Item],
    *,
    shard_rows: int = 10,
    name: str = "toy",
    texts: Sequence[bytes | None] = (),
    documents: Sequence[dict[str, Any]] = (),
) -> Path:
    """items: in global order, their columns go into the index; texts, documents: optional members of each item."""
    folder.mkdir(parents=True)
    rows, sizes = [], {}
    for shard, start in enumerate(range(0, len(items), shard_rows)):
        tar = f"{name}-{shard:06d}.tar"
        with (folder / tar).open("wb") as file, TarWriter(file) as writer:
            for row, item in enumerate(items[start : start + shard_rows]):
                stem = f"{item.key}-0-{item.copy}"
                offset = writer.add(f"{stem}.png", item.data)
                text = texts[start + row] if texts else None
                text_offset = -1 if text is None else writer.add(f"{stem}.txt", text)
                document = documents[start + row] if documents else {}
                writer.add(f"{stem}.json", json.dumps({"key": item.key, **document}).encode())
                place = {"shard": shard, "row": row, "name": stem, "key": item.key, "item": "0", "copy": item.copy}
                size = {
                    "offset": offset,
                    "size": len(item.data),
                    "text_offset": text_offset,
                    "text_size": len(text or b""),
                }
                shape = {"width": item.width, "height": item.height}
                rows.append({**place, "ext": "png", **size, **shape, **item.columns})
        sizes[tar] = min(shard_rows, len(items) - start)
    small = {"shard": pa.int32(), "row": pa.int32(), "copy": pa.int32(), "width": pa.int32(), "height": pa.int32()}
    table = pa.Table.from_pylist(rows)
    fields = [pa.field(item.name, small.get(item.name, item.type)) for item in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), folder / "index.parquet")
    (folder / "sizes.json").write_text(json.dumps(sizes))
    (folder / "manifest.json").write_text(json.dumps({"noun": "dataset", "rows": len(items)}))
    return folder


def draw(label: int, number: int, width: int, height: int) -> bytes:
    """An image of a class: bars whose number, direction and colour depend on the class, on a random background."""
    rng = np.random.default_rng([label, number])
    image = Image.new("RGB", (width, height), tuple(rng.integers(150, 255, 3).tolist()))
    pen = ImageDraw.Draw(image)
    colour = [(200, 30, 30), (20, 120, 40), (30, 40, 190), (90, 20, 110)][label % 4]
    for bar in range(2 + label % 3):
        at = (bar + 0.3 + rng.uniform(0, 0.4)) / (2 + label % 3)
        box = (at * width, 0, at * width + 4, height) if label % 2 else (0, at * height, width, at * height + 4)
        pen.rectangle(box, fill=colour)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def drawn_items(
    count: int, *, classes: int = 4, sides: Sequence[tuple[int, int]] = ((48, 48), (64, 32), (32, 80))
) -> list[Item]:
    """`count` images of the classes in turn; every fifth is a near-duplicate (same set) of the previous image."""
    items: list[Item] = []
    for number in range(count):
        key = make_key("toy", str(number))
        twin = number % 5 == 4
        label = (number - twin) % classes
        width, height = sides[(number - twin) % len(sides)]
        chosen = items[-1].columns["duplicate_set"] if twin else key
        columns = {"label": f"class-{label}", "duplicate_set": chosen}
        items.append(Item(draw(label, number - twin, width, height), width, height, key, columns=columns))
    return items


def write_clip_art(folder: Path, count: int = 40) -> Path:
    """Images with what the quickstart's have: a text, a title and keywords."""
    titles = [f"bars {number}" for number in range(count)]
    keywords = [[f"tag {number} {part}" for part in range(8)] for number in range(count)]
    about = [{"meta": {"title": title, "keywords": tags}} for title, tags in zip(titles, keywords, strict=True)]
    items = drawn_items(count, sides=((96, 96), (64, 96)))
    return write_dataset(folder, items, texts=[title.encode() for title in titles], documents=about)
