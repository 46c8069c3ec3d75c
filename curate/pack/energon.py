"""The index of a dataset for NVIDIA's Energon 7, whose own preparation writes into the folder, with a random UUID.

NAME-000000.tar.idx     where the samples of a tar begin, and where the last one ends
.nv-meta/.info.json     samples per tar
.nv-meta/split.yaml     all tars are for training
.nv-meta/dataset.yaml   samples are dicts of their members (`CrudeWebdataset`)
.nv-meta/index.uuid     of the dataset's fingerprint
.nv-meta/index.sqlite   samples and members by key
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from curate.core.contracts import OF_VIDEOS

VERSION = "7.4.1"
FOLDER = ".nv-meta"
MOST_LOOKED_UP = 1 << 22
"""Samples of a dataset above which there is no look-up by key: 250 bytes each, in one file by one process.
Training does not need it."""

_BLOCK_BYTES = 512
_READS = (
    "shard", "row", "name", "ext", "offset", "size", "text_offset", "text_size", "json_offset", "json_size",
)  # fmt: skip
_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL, byte_offset INTEGER,
    byte_size INTEGER
);
CREATE TABLE sample_parts (
    tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER, content_byte_size INTEGER
);
"""
_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(
    tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size
);
"""


def edges(json_offset: Sequence[int], json_size: Sequence[int]) -> list[int]:
    """(n + 1,) where each sample of a tar begins, and the last one ends, from the places of their last members."""
    ends = np.asarray(json_offset, np.int64) + np.asarray(json_size, np.int64)
    return [0, *(-(-ends // _BLOCK_BYTES) * _BLOCK_BYTES).tolist()]


def index_of_tar(rows: pa.Table) -> bytes:
    """`.tar.idx`, from the tar's rows of the dataset's index."""
    found = edges(rows.column("json_offset").to_numpy(), rows.column("json_size").to_numpy())
    return np.asarray(found, "<u8").tobytes()


def files(
    tars: Sequence[tuple[str, int]], fingerprint: str, index: Callable[[], Iterable[pa.Table]], numbered: bool
) -> dict[str, bytes | Callable[[Path], None]]:
    """The files of `.nv-meta`, from (file name, samples) of every tar and what reads the dataset's index, in tables of
    whole tars. `numbered`: the frames of a video are `.00.jpg` …, and not `.jpg`."""
    info = {"energon_version": VERSION, "shard_counts": dict(tars)}
    splits = {"train": [tar for tar, samples in tars if samples], "val": [], "test": []}
    kind = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    made: dict[str, bytes | Callable[[Path], None]] = {
        ".info.json": json.dumps(info, indent=2).encode(),
        "split.yaml": _yaml({"split_parts": splits, "exclude": []}),
        "dataset.yaml": _yaml(kind),
        "index.uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, fingerprint)).encode(),
    }
    if sum(samples for _, samples in tars) <= MOST_LOOKED_UP:
        made["index.sqlite"] = partial(write_look_up, index, numbered)
    return {f"{FOLDER}/{name}": content for name, content in made.items()}


def _yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, sort_keys=False).encode()


def write_look_up(index: Callable[[], Iterable[pa.Table]], numbered: bool, path: Path) -> None:
    """`index.sqlite`: samples and members by key, in the order of the tars, so that equal content is equal bytes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        base.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;")
        base.executescript(_TABLES)
        base.execute("BEGIN")
        for table in index():
            rows = table.select([*_READS, *(OF_VIDEOS.names if may_have_videos(table) else ())]).to_pylist()
            base.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", _samples(rows))
            base.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", _parts(rows, numbered))
        base.execute("COMMIT")
        base.executescript(_INDEXES)


def may_have_videos(index: pa.Table) -> bool:
    """Whether a dataset's index has the columns of videos; a column of one of these names may be a carried one."""
    return set(OF_VIDEOS.names) <= set(index.column_names)


def _samples(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    found = edges([row["json_offset"] for row in rows], [row["json_size"] for row in rows])
    for row, (start, stop) in zip(rows, pairwise(found), strict=True):
        start = start if row["row"] else 0
        yield row["shard"], row["name"], row["row"], start, stop - start


def _parts(rows: Sequence[dict[str, Any]], numbered: bool) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        for name, offset, size in members(row, numbered):
            yield row["shard"], row["row"], name, offset, size


def members(row: dict[str, Any], numbered: bool) -> Iterator[tuple[str, int, int]]:
    """(extension, offset, size) of the members of a sample, in order, from its row of the dataset's index."""
    frames = row.get("frame_sizes") or ()
    for number, size in enumerate(frames):
        yield f"{number:02d}.jpg" if numbered else "jpg", row["offset"] + row["frame_offsets"][number], size
    if frames and row["clip_offset"] is not None:
        yield "mp4", row["clip_offset"], row["clip_size"]
    if not frames:
        yield row["ext"], row["offset"], row["size"]
    if row["text_offset"] >= 0:
        yield "txt", row["text_offset"], row["text_size"]
    yield "json", row["json_offset"], row["json_size"]
