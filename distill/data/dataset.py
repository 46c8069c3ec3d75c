"""Opens a dataset folder: `index.parquet` (a row per sample), `sizes.json` (tars), `manifest.json` (it is complete)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.core.errors import InputError
from curate.core.hashing import digest, digest_bytes
from curate.core.storage import Storage, open_storage

REQUIRED = ("shard", "row", "key", "copy", "ext", "offset", "size", "width", "height")


class NoDataset(InputError):
    """The folder is there, but holds no finished dataset."""


@dataclass(frozen=True)
class Dataset:
    """A finished dataset, local or on an object store."""

    storage: Storage
    """Rooted at the folder."""
    index: pa.Table
    """Samples in the order in which they were written."""
    tars: list[str]
    """File names by shard."""
    fingerprint: str
    """The same content has the same value wherever it lies."""

    @property
    def url(self) -> str:
        return self.storage.url

    def __len__(self) -> int:
        return self.index.num_rows

    def has(self, name: str) -> bool:
        return name in self.index.column_names

    def integers(self, name: str) -> NDArray[np.int64]:
        """A column (n,) as integers; nulls become -1."""
        return self.index.column(name).cast(pa.int64()).fill_null(-1).to_numpy()

    def strings(self, name: str, rows: NDArray[np.int64] | None = None) -> list[str | None]:
        """A column (n,), or its values at some rows."""
        column = self.index.column(name)
        return (column if rows is None else column.take(pa.array(rows))).cast(pa.string()).to_pylist()


def open_dataset(url: str) -> Dataset:
    """Raises InputError when the folder is no dataset, is unfinished, or has no samples."""
    storage = _locate(url)
    data = storage.read("index.parquet")
    table = pq.read_table(pa.BufferReader(data))
    missing = [name for name in REQUIRED if name not in table.column_names]
    if missing:
        raise InputError(f"{url}/index.parquet: no column {', '.join(missing)}; write the dataset again with pack")
    if not table.num_rows:
        raise InputError(f"{url}: the dataset has no samples; look at its funnel with `curate status`")
    tars = sorted(storage.read_json("sizes.json"))
    named = pc.max(table.column("shard")).as_py() + 1
    if named > len(tars):
        raise InputError(f"{url}/sizes.json: {len(tars)} tars, but the index names {named}; write the dataset again")
    return Dataset(storage, table, tars, _fingerprint(storage.read_json("manifest.json"), data))


def _locate(url: str) -> Storage:
    """The folder itself, or the one finished dataset below it: datasets/NAME for datasets/NAME/FINGERPRINT."""
    storage = open_storage(url)
    if storage.exists("manifest.json"):
        return storage
    if not storage.fs.isdir(storage.root):
        raise InputError(f"data.sources: {url!r} is no folder; give the dataset folder that a pipeline wrote")
    below = sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in storage.fs.ls(storage.root, detail=False))
    finished = [name for name in below if storage.exists(f"{name}/manifest.json")]
    if len(finished) != 1:
        found = ", ".join(finished) or "none"
        raise (InputError if finished else NoDataset)(
            f"data.sources: {url!r} has no manifest.json; finished datasets below it: {found}; give one"
        )
    return open_storage(storage.url_of(finished[0]))


def _fingerprint(manifest: Any, index: bytes) -> str:
    stated = manifest.get("fingerprint") if isinstance(manifest, dict) else None
    return digest({"fingerprint": stated, "index": digest_bytes([index])})
