"""Artifacts: named tables, arrays and JSON values that a Reduce, a Fit or a Report has made."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curate.core.contracts.stage import Artifact
from curate.core.hashing import digest_bytes
from curate.core.nouns.manifest import Manifest, reading
from curate.core.store.arrays import read_arrays
from curate.core.store.spill import Spill
from curate.core.store.storage import Storage

STATES = "states.parquet"
"""File of a Reduce's artifact: names of the states that it was computed from."""
FILES = "files"
"""Key in an artifact's manifest: its files, so that readers need not list them."""


def save_artifact(storage: Storage, base: str, artifact: Artifact) -> tuple[int, dict[str, str]]:
    """Publish each part under its name: arrays as .npy, tables as .parquet, bytes unchanged, other values as .json.
    Returns the bytes written and a digest of each file."""
    size, digests = 0, {}
    for name, value in artifact.items():
        if isinstance(value, pa.Table):
            sink = io.BytesIO()
            pq.write_table(value, sink, compression="zstd")
            file, data = f"{name}.parquet", sink.getvalue()
        elif isinstance(value, np.ndarray):
            sink = io.BytesIO()
            np.save(sink, value, allow_pickle=False)
            file, data = f"{name}.npy", sink.getvalue()
        elif isinstance(value, bytes):
            file, data = name, value
        else:
            file, data = f"{name}.json", json.dumps(value, sort_keys=True, indent=1).encode()
        storage.publish_bytes(f"{base}/{file}", data)
        size += len(data)
        digests[file] = digest_bytes([data])
    return size, digests


def read_portion(storage: Storage, line: Mapping[str, Any], columns: Sequence[str] | None = None) -> pa.Table:
    """Rows of a portion of a Collect's artifact: the row group that its `line` names."""
    path = f"{line['base']}/{line['file']}"
    remedy = f"remove the folder {line['base']} and rerun the recipe"
    with reading(storage, path, "file of portions", remedy), storage.open(path) as file:
        return pq.ParquetFile(file).read_row_group(line["index"], columns=None if columns is None else list(columns))


class StoredArtifact(Mapping[str, Any]):
    """The parts of a committed artifact by name, as its stage returned them, read on first access. What the steps of a
    Fit stored under a name is `<name>/<part, six digits>`: a dict of arrays."""

    def __init__(self, storage: Storage, base: str) -> None:
        self._storage, self._base = storage, base
        manifest = Manifest.load(storage, base)
        files = None if manifest is None else manifest.extra.get(FILES)
        if files is None:  # unfinished, or written by an older version
            existing = [file for file in sorted(storage.list(base)) if file not in ("manifest.json", STATES)]
            files = [file for file in existing if not file.startswith("work/")]
        self._files = {_part_name(file): file for file in files}
        self._parts: dict[str, Any] = {}

    def part(self, name: str, index: int) -> dict[str, np.ndarray]:
        """Arrays that part `index` stored under `name`, memory-mapped: from a local disk, or from a temporary file to
        which they are fetched once. KeyError if it stored none."""
        key = f"{name}/{index:06d}"
        if self._storage.local:
            return self._read(self._files[key])
        if key not in self._parts:
            fetched = self._read(self._files[key])
            with Spill() as spill:
                spill.append(fetched)
                self._parts[key] = spill.mapped()
        return self._parts[key]

    def parts(self, name: str) -> list[int]:
        """Indices of the parts that stored arrays under `name`, in order."""
        return [int(key.rpartition("/")[2]) for key in self._files if key.rpartition("/")[0] == name]

    def portion(self, line: Mapping[str, Any]) -> pa.Table:
        """Rows of one portion of a Collect's artifact, by its line in the part `portions`."""
        return read_portion(self._storage, line)

    def __getitem__(self, name: str) -> Any:
        if name not in self._parts:
            self._parts[name] = self._read(self._files[name])
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def _read(self, file: str) -> Any:
        path = f"{self._base}/{file}"
        if file.endswith(".parquet"):
            return self._storage.read_table(path)
        if file.endswith(".npz"):
            return read_arrays(self._storage, path)
        if file.endswith(".npy"):
            if self._storage.local:
                return np.load(self._storage.path(path), mmap_mode="r", allow_pickle=False)
            return np.load(io.BytesIO(self._storage.read(path)), allow_pickle=False)
        if file.endswith(".json"):
            return self._storage.read_json(path)
        return self._storage.read(path)


def _part_name(file: str) -> str:
    stem, _, kind = file.rpartition(".")
    return stem if kind in ("parquet", "npy", "npz", "json") else file
