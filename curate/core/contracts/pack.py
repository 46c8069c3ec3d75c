"""`Pack`: turns a selection into a dataset for training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from curate.core.contracts.stage import Stage
from curate.core.reader import Reader

OF_VIDEOS = pa.schema(
    [
        pa.field("frames", pa.int16()),
        pa.field("frame_offsets", pa.list_(pa.int32())),
        pa.field("frame_sizes", pa.list_(pa.int32())),
        pa.field("clip_offset", pa.int64()),
        pa.field("clip_size", pa.int64()),
        pa.field("duration_ms", pa.int64()),
    ]
)
"""Columns of the index of a dataset whose pool may have videos; null for an image."""
MEDIUM = "_medium"
"""Name under which `write` finds a sample's medium, null for images, if its pool may have others; beside it there is
`duration_ms`."""


@dataclass(frozen=True)
class Packed:
    """Location of a sample's members in an output tar, for the dataset's index."""

    ext: str
    offset: int
    size: int
    text_offset: int = -1
    text_size: int = 0
    width: int | None = None
    height: int | None = None
    json_offset: int = -1
    json_size: int = 0
    carried: dict[str, Any] = field(default_factory=dict)
    """Further columns of the index, with the same names for every sample."""
    of_video: Mapping[str, Any] | None = None
    """Values of OF_VIDEOS; None if the pool has no videos."""


class Pack(Stage):
    """Writes the dataset. The engine ranks the selection, assigns rows to output shards and publishes the files."""

    name: str
    shard_rows: int = 1000
    seed: int = 0

    def text_columns(self) -> tuple[str, ...]:
        """Columns that may have a sample's text, best first; `write` gets those that exist. If items are packed, the
        first that exists must have a value per item."""
        return ()

    def groups(self) -> tuple[str, ...]:
        """Names of groups of samples, in order; a tar has samples of one group. Empty: samples are not grouped."""
        return ()

    def group_of(self, row: Mapping[str, Any]) -> int:
        """Place in `groups` of a row with the columns that `write` gets."""
        raise NotImplementedError

    def write(self, row: Mapping[str, Any], data: Reader, add: Callable[[str, bytes | Reader], int]) -> Packed:
        """Write one sample into the tar; `add(member name, bytes or reader)` returns the offset of the member's bytes.
        Raise Reject before adding anything to leave the sample out. `row` has the item's element of per-item columns,
        and MEDIUM.
        """
        raise NotImplementedError

    def beside(self, tar: str, rows: pa.Table) -> dict[str, bytes]:
        """File name of a tar and its rows of the index -> further files about it, by name."""
        return {}

    def finish(
        self, tars: list[tuple[str, int]], fingerprint: str, index: Callable[[], Iterable[pa.Table]]
    ) -> dict[str, bytes | Callable[[Path], None]]:
        """(file name, samples) of every tar, and what reads the index in tables of whole tars -> further files by name:
        their bytes, or what writes them to a path."""
        return {}
