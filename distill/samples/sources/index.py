"""The integer columns of a dataset's index: offsets of each sample's bytes, image sizes, keys and duplicate sets.

For a large dataset the columns are arrays in `$CURATE_CACHE/index` (or ~/.cache/curate/index), which all processes of a
machine map into memory: they share one copy and load only the pages that they read. A key and the name of a duplicate
set are two 64-bit words each; other strings are not included.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.errors import InputError, StorageError
from curate.core.hashing import digest, key_words
from curate.core.store.cache import cache_folder
from curate.kernels.sides import words_of_sets
from distill.samples.cache import explain_errors, lock_folder, mark_used, publish_folder, remove_older

VERSION = 3
"""To increase when the same table would get different arrays."""
KEY, ITEM, SETS, FRAMES = "key", "item", "duplicate_set", "frames"
_NUMBERS: dict[str, type[np.generic]] = {
    "shard": np.int32, "row": np.int32, "copy": np.int32, "offset": np.int64, "size": np.int64,
    "width": np.int32, "height": np.int32, ITEM: np.int32, "members": np.int64, FRAMES: np.int16,
}  # fmt: skip
_IN_MEMORY = 1 << 20
"""Up to this many samples, each process has its own arrays in memory: at most 100 MB."""
_META = "meta.json"
_PIECES, _PIECE = 32, 1 << 20
_LOG = logging.getLogger("distill")


class Index:
    """Arrays (n, …) by column; nulls of the table are -1."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], fingerprint: str) -> None:
        self._arrays, self.fingerprint = dict(arrays), fingerprint
        self.words, self.sets = arrays[KEY], arrays[SETS]
        """(n, 2) uint64: keys, and `words_of_sets` of duplicate sets (or of the key of a sample without a set)."""

    def __len__(self) -> int:
        return len(self.words)

    def has(self, name: str) -> bool:
        return name in self._arrays and name not in (KEY, SETS)

    def numbers(self, name: str) -> NDArray[Any]:
        """(n,) int32 or int64."""
        return self._arrays[name]


@dataclass(frozen=True)
class IndexSource:
    """Source of an Index."""

    place: str
    """Path or URL for messages."""
    origin: str
    """Identifies the dataset across its versions."""
    digest: str
    """Identifies this version of the dataset."""
    rows: int
    names: list[str]
    """Integer columns, KEY, and SETS if the dataset has duplicate sets."""
    batches: Callable[[], Iterable[pa.RecordBatch]]
    """Reads these columns of all samples in order; may be called repeatedly."""
    fingerprint: Callable[[Index], str]
    """Digest of the dataset's content, given the arrays."""


def load_index(table: IndexSource) -> Index:
    """Load the index from the cache, or build it; only a large one is cached. InputError if the table is invalid."""
    if table.rows <= _IN_MEMORY:
        parts = list(_parts(table))
        arrays = _completed({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
        return Index(arrays, table.fingerprint(Index(arrays, "")))
    folder = cache_folder("index") / f"{digest(table.origin)[:16]}-{table.digest}"
    with lock_folder(folder.parent):
        found = _map(folder, table.rows)
        if found is None:
            with explain_errors(folder):
                _write(folder, table)
                remove_older(folder)
            found = _map(folder, table.rows)
    if found is None:
        raise StorageError(f"{folder}: corrupt right after it was written; set CURATE_CACHE to another folder")
    return found


def _parts(table: IndexSource) -> Iterator[dict[str, NDArray[Any]]]:
    """Arrays of each batch; at least one batch."""
    last = 0
    for batch in table.batches():
        try:
            part = _part(batch, table.names)
        except (pa.ArrowException, ValueError, TypeError, NotImplementedError) as error:
            raise InputError(f"{table.place}: {error}; write the dataset again with pack") from error
        shards = part["shard"]
        if len(shards) and (shards[0] < last or (np.diff(shards) < 0).any()):
            raise InputError(f"{table.place}: rows are not in tar order; write the dataset again with pack")
        last = shards[-1] if len(shards) else last
        yield part


def _part(batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    part = {name: _numbers(batch.column(name), name) for name in names if name not in (KEY, SETS)}
    keys = batch.column(KEY).cast(pa.string()).to_pylist()
    sets = batch.column(SETS).cast(pa.string()).to_pylist() if SETS in names else keys
    part[KEY] = key_words(keys)
    part[SETS] = words_of_sets(name or key for name, key in zip(sets, keys, strict=True))
    return part


def _numbers(column: pa.Array, name: str) -> NDArray[Any]:
    dtype = np.dtype(_NUMBERS.get(name, np.int64))
    values = column.cast(pa.from_numpy_dtype(dtype))
    return values.fill_null(0 if name == ITEM else -1).to_numpy(zero_copy_only=False)


def _completed(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return arrays if "copy" in arrays else arrays | {"copy": copies(arrays[KEY])}


def copies(words: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Earlier occurrences (n,) of each key (n, 2)."""
    order = np.lexsort((words[:, 1], words[:, 0]))
    ordered = words[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    place = np.arange(len(order))
    found = np.empty(len(order), dtype=np.int32)
    found[order] = place - np.maximum.accumulate(np.where(new, place, 0))
    return found


# --- on disk ---


def _write(folder: Path, table: IndexSource) -> None:
    """Write sequentially, not through a memory map: a full disk then raises OSError instead of killing the process."""
    with publish_folder(folder) as aside:
        _write_arrays(aside, _parts(table))
        arrays = _arrays(aside)
        if "copy" not in arrays:
            _write_arrays(aside, [{"copy": copies(arrays[KEY])}])
            arrays = _arrays(aside)
        files = {path.name: _check(path) for path in aside.iterdir()}
        (aside / _META).write_text(json.dumps({"files": files, "fingerprint": table.fingerprint(Index(arrays, ""))}))


def _check(path: Path) -> list[int]:
    """[size, CRC-32] of a file; the CRC of a large file covers 32 MiB spread over it, including both ends."""
    size, found = path.stat().st_size, 0
    whole = size <= _PIECES * _PIECE
    with path.open("rb", buffering=0) as file:
        for start in range(0, size, _PIECE) if whole else np.linspace(0, size - _PIECE, _PIECES).astype(int).tolist():
            file.seek(start)
            found = zlib.crc32(file.read(_PIECE), found)
    return [size, found]


def _write_arrays(folder: Path, parts: Iterable[dict[str, NDArray[Any]]]) -> None:
    """Write each column as raw numbers to NAME.DTYPE."""
    files: dict[str, IO[bytes]] = {}
    try:
        for part in parts:
            for name, values in part.items():
                if name not in files:
                    files[name] = (folder / f"{name}.{values.dtype.name}").open("wb")
                files[name].write(np.ascontiguousarray(values).data)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in files.values():
            file.close()


def _arrays(folder: Path) -> dict[str, NDArray[Any]]:
    """Memory-mapped arrays by column."""
    found = {}
    for path in folder.iterdir():
        if path.name != _META:
            name, _, dtype = path.name.rpartition(".")
            values = np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)
            found[name] = values.reshape(-1, 2) if name in (KEY, SETS) else values
    return found


def _map(folder: Path, rows: int) -> Index | None:
    """The mapped index; None if it is missing, or corrupt: then it is logged and removed."""
    if not folder.is_dir():
        return None
    try:
        meta = json.loads((folder / _META).read_text())
        wrong = [name for name, check in meta["files"].items() if _check(folder / name) != check]
        if wrong:
            raise ValueError(f"checksum mismatch of {wrong[0]}")
        arrays = _arrays(folder)
        if {len(values) for values in arrays.values()} != {rows}:
            raise ValueError(f"expected {rows} samples")
        mark_used(folder)
        return Index(arrays, str(meta["fingerprint"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _LOG.warning("%s: corrupt (%s); rebuilding it", folder, error)
        shutil.rmtree(folder, ignore_errors=True)
        return None
