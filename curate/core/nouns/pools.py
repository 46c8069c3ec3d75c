"""Pools: immutable shards of samples, each a Parquet table and the tar of its members."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from curate.core.nouns.manifest import read_lines, reading
from curate.core.store.storage import Storage, open_storage

POOL_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("source_id", pa.string()),
        pa.field("name", pa.string()),
        pa.field("offset", pa.int64(), metadata={"unit": "bytes"}),
        pa.field("size", pa.int64(), metadata={"unit": "bytes"}),
        pa.field("ext", pa.string()),
        pa.field("caption", pa.string()),
        pa.field("url", pa.string()),
        pa.field("width", pa.int32(), metadata={"unit": "pixels"}),
        pa.field("height", pa.int32(), metadata={"unit": "pixels"}),
        pa.field("format", pa.string()),
        pa.field("sha256", pa.string()),
        pa.field("meta", pa.string(), metadata={"content": "JSON object of the source's other fields"}),
        pa.field("parent", pa.string(), metadata={"of": "key of the sample that this one was made out of"}),
        pa.field(
            "root", pa.string(), metadata={"of": "key of the first sample on the way: the parent's root, or parent"}
        ),
        pa.field("span", pa.string(), metadata={"content": "JSON object: which part of the parent it is"}),
        pa.field("parent_row", pa.int32(), metadata={"of": "row of the parent in its shard"}),
        pa.field("reject", pa.string()),
        pa.field("status", pa.string(), metadata={"values": "null, unusable, or error: a retry may succeed"}),
        pa.field("source", pa.string(), metadata={"of": "name of the folder, if the source reads several"}),
        pa.field("media", pa.string(), metadata={"values": "name of a medium (curate.codec.media); null: image"}),
        pa.field("duration_ms", pa.int64(), metadata={"unit": "milliseconds"}),
        pa.field("fps", pa.float64(), metadata={"unit": "frames per second"}),
        pa.field("frames", pa.int64()),
        pa.field("has_audio", pa.bool_()),
        pa.field("kind", pa.string(), metadata={"values": "clip, window …: what a virtual child is of its parent"}),
    ]
)


MEDIA_COLUMNS = ("media", "duration_ms", "fps", "frames", "has_audio", "kind")
"""Columns that only a pool of other media than images has."""
LATER = pa.schema([POOL_SCHEMA.field(name) for name in ("status", "source", *MEDIA_COLUMNS)])
"""Columns that tables of older versions lack. A table in which one of them but `status` is empty lacks it too."""
FORMAT_OF_POOL = 2
"""Increased when the meaning of a pool column changes, so that facts computed from it are recomputed."""


EDGES, EXTRACTED = "edges:", "extracted:"
"""What the column `sha256` begins with if the digest is not of all bytes: for a large file in place, the first
and last MiB (curate.codec.readers.identity); for a virtual child, its parent's `sha256` and its span."""


@dataclass(frozen=True, slots=True)
class Shard:
    """An immutable shard: a table, and the tar of its members. If they stay in place, `tar` is the absolute URL of an
    existing tar, or of a folder (it ends in `/`) of their files. It is empty if the members are virtual: extracted from
    their parents when they are read."""

    id: str
    rows: int
    tar: str
    tar_bytes: int
    """Bytes of the tar, or of all files in place."""
    table: str
    parent: str = ""
    """For a shard of a derived pool: the parents' shard, as JSON."""

    def parent_shard(self) -> Shard:
        return Shard(**json.loads(self.parent))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def in_place(shard: Shard) -> bool:
    """Whether the members are outside the workspace, where they were acquired."""
    return "://" in shard.tar or shard.tar.startswith("/")


def in_folder(shard: Shard) -> bool:
    """Whether each member is a file in place: that of its row's `source_id`."""
    return shard.tar.endswith("/")


def is_virtual(shard: Shard) -> bool:
    return not shard.tar


def place_url(place: str) -> str:
    """Absolute URL of a tar, or of a folder, which ends in `/`."""
    url = open_storage(place).url
    return f"{url.rstrip('/')}/" if place.endswith("/") else url


def pool_base(namespace: str, fingerprint: str) -> str:
    return f"pools/{namespace}/versions/{fingerprint}"


def pool_table(rows: list[dict[str, Any]]) -> pa.Table:
    table = pa.Table.from_pylist(rows, schema=POOL_SCHEMA)
    optional = [name for name in LATER.names if name != "status"]
    return table.drop_columns([name for name in optional if table.column(name).null_count == len(table)])


def read_pool(storage: Storage, path: str, columns: list[str] | None = None) -> pa.Table:
    """The table of a pool's shard, or the named columns."""
    parts = path.split("/")
    remedy = f"restore it, or remove the folder {'/'.join(parts[:-1])} and rerun the recipe"
    if parts[2:3] == ["shards"]:
        records = " and ".join(f"{'/'.join(parts[:2])}/{name}" for name in ("portions", "repeats"))
        remedy = f"restore it, or remove it and the folders {records} and rerun the recipe"
    with reading(storage, path, "table of a pool", remedy):
        return storage.read_table(path, columns=columns, absent=LATER)


def read_shards(storage: Storage, base: str) -> list[Shard]:
    return shards_of(read_lines(storage, base))


def shards_of(lines: pa.Table) -> list[Shard]:
    """Shards from a table with their fields as columns; other columns are ignored."""
    names = [name for name in Shard.__dataclass_fields__ if name in lines.column_names]
    columns = [lines.column(name).to_pylist() for name in names]
    return [Shard(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def lines_of(shards: Sequence[Shard]) -> pa.Table:
    """Shards as a table with their fields as columns."""
    return pa.table({name: [getattr(shard, name) for shard in shards] for name in Shard.__dataclass_fields__})
