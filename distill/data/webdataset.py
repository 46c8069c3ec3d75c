"""Any WebDataset as a Dataset: its tars are indexed once, several at a time, and the index is kept.

What is kept are parquet files for `PART` tars each, in `$CURATE_CACHE/webdataset` (or ~/.cache/curate/webdataset),
named by a digest of the tars' names, sizes and times (or etags): a changed tar is indexed again, an interrupted pass
goes on. Processes of one machine wait for the one that is at it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from braceexpand import UnbalancedBracesError, braceexpand
from fsspec.core import has_magic
from rich.console import Console

from curate.core.errors import InputError, StorageError
from curate.core.hashing import digest, digest_bytes, key_words
from curate.core.storage import Storage, open_storage
from distill.data.dataset import Dataset
from distill.data.tar_index import CLASS, TarIndex, index_tar

VERSION = 1
"""Rises when the same tars would be indexed in another way."""
PART = 64
_THREADS = 8
_QUIET_SECONDS, _LINE_SECONDS = 2.0, 5.0
_BROKEN = b"broken"
_LOG = logging.getLogger("distill")
_CONTENT = ("shard", "row", "size", "width", "height", "text_size", "json_size")

_FIELDS = {
    "row": pa.int32(), "name": pa.string(), "key": pa.string(), "ext": pa.string(), "offset": pa.int64(),
    "size": pa.int64(), "width": pa.int32(), "height": pa.int32(), "shard": pa.int32(), CLASS: pa.string(),
    "text_offset": pa.int64(), "text_size": pa.int64(), "json_offset": pa.int64(), "json_size": pa.int64(),
}  # fmt: skip


@dataclass(frozen=True)
class Tar:
    name: str
    """Relative to the storage's root."""
    size: int
    stamp: str
    """Time of the last change, or the etag."""


def find_tars(url: str) -> tuple[Storage, list[Tar]]:
    """The tars that a folder, a glob or a pattern names, by name; none where a folder holds none.

    Raises InputError for a pattern that names a tar which is not there, or for a glob without any.
    """
    try:
        paths = list(braceexpand(url)) if "{" in url else [url]
    except UnbalancedBracesError as error:
        raise InputError(f"data.sources: {url!r}: {error}; close each brace or remove it") from None
    if not all(path.endswith(".tar") for path in paths):
        storage = open_storage(url)
        return storage, _tars(storage, [name for name in storage.list("") if name.endswith(".tar")], url)
    storage = open_storage(_folder(paths))
    found = []
    for path in paths:
        inside = str(storage.fs._strip_protocol(path))
        matches = storage.fs.glob(inside) if has_magic(path) else [inside]
        found += [match[len(storage.root.rstrip("/")) + 1 :] for match in matches]
    if not found:
        raise InputError(f"data.sources: {url!r} matches no tar; check the path")
    return storage, _tars(storage, found, url)


def _folder(paths: Sequence[str]) -> str:
    """The deepest folder that holds all of the paths, as far as they have no wildcard."""
    parts = [path.split("/")[:-1] for path in paths]
    shared = 0
    while all(len(part) > shared and part[shared] == parts[0][shared] for part in parts):
        if has_magic(parts[0][shared]):
            break
        shared += 1
    return "/".join(parts[0][:shared]) or ("/" if paths[0].startswith("/") else ".")


def _tars(storage: Storage, names: list[str], url: str) -> list[Tar]:
    def stat(name: str) -> Tar:
        try:
            info = storage.fs.info(storage.path(name))
        except FileNotFoundError:
            raise InputError(
                f"data.sources: {storage.url_of(name)} of {url!r} does not exist; check the path or the range"
            ) from None
        stamp = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified") if info.get(key)), "")
        return Tar(name, int(info["size"]), str(stamp))

    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(stat, sorted(names)))


def open_webdataset(storage: Storage, tars: Sequence[Tar], *, cache: Path | None = None) -> Dataset:
    """Raises InputError when no tar has a sample with a picture; a tar that is cut is said in one line of the log."""
    folder = cache or cache_folder()
    parts = [tars[start : start + PART] for start in range(0, len(tars), PART)]
    paths = [folder / f"{_digest(storage, part)}.parquet" for part in parts]
    if not all(path.exists() for path in paths):
        with _locked(folder):
            _index(storage, parts, paths)
    tables = [pq.read_table(path) for path in paths]
    said = [line for table in tables for line in json.loads((table.schema.metadata or {}).get(_BROKEN, b"[]"))]
    for line in said:
        _LOG.warning("%s", line)
    table = _whole(tables)
    if not table.num_rows:
        why = said[0] if said else "no sample has a picture"
        raise InputError(f"{storage.url}: nothing to read in {len(tars)} tars ({why}); expected WebDataset tars")
    return Dataset(storage, table, [tar.name for tar in tars], _content(table))


def _content(table: pa.Table) -> str:
    """Digest of what is in which order, wherever it lies: a key stands for its picture."""
    numbers = [pc.fill_null(table.column(name).cast(pa.int64()), -1).to_numpy() for name in _CONTENT]
    return digest_bytes([key_words(table.column("key").to_pylist()).tobytes(), *(item.tobytes() for item in numbers)])


def cache_folder() -> Path:
    named = os.environ.get("CURATE_CACHE")
    return (Path(named) if named else Path.home() / ".cache" / "curate") / "webdataset"


def _digest(storage: Storage, part: Sequence[Tar]) -> str:
    return digest({"version": VERSION, "root": storage.url, "tars": [[tar.name, tar.size, tar.stamp] for tar in part]})


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise StorageError(f"{folder}: cannot keep the index there ({error.strerror}); set CURATE_CACHE") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _index(storage: Storage, parts: Sequence[Sequence[Tar]], paths: Sequence[Path]) -> None:
    """Write what is missing, part by part, a part with all its tars or not at all."""
    todo = [(part, path) for part, path in zip(parts, paths, strict=True) if not path.exists()]
    progress = _Progress(storage.url, sum(len(part) for part, _ in todo))
    with ThreadPoolExecutor(_THREADS) as threads:
        waiting = [(part, path, threads.map(lambda tar: _one(storage, tar), part)) for part, path in todo]
        for part, path, answers in waiting:
            found = []
            for index in answers:
                found.append(index)
                progress.add(len(index.rows))
            table = _table(storage, part, found)
            Storage(str(path.parent)).publish_table(path.name, table)


def _one(storage: Storage, tar: Tar) -> TarIndex:
    try:
        return index_tar(storage, tar.name)
    except OSError as error:
        return TarIndex(broken=f"cannot be read: {error}")


def _table(storage: Storage, part: Sequence[Tar], found: Sequence[TarIndex]) -> pa.Table:
    """Rows of a part; `shard` counts within it."""
    rows = [{"shard": shard, **row} for shard, index in enumerate(found) for row in index.rows]
    names = dict.fromkeys(name for row in rows for name in row)
    types = {name: _FIELDS.get(name, pa.int64()) for name in [*_FIELDS, *names]}
    lines = []
    for tar, index in zip(part, found, strict=True):
        place = f"{storage.url_of(tar.name)}: {len(index.rows)} samples"
        if index.broken:
            lines.append(f"{place} before the tar breaks ({index.broken}); fetch it again for the rest")
        elif index.without_picture:
            lines.append(f"{place}, and {index.without_picture} without a picture, which are left out")
    schema = pa.schema(types.items(), metadata={_BROKEN: json.dumps(lines).encode()})
    return pa.Table.from_pylist(rows, schema=schema)


def _whole(tables: Sequence[pa.Table]) -> pa.Table:
    """All parts, with shards counted over all, and copies of equal keys numbered."""
    moved = []
    for number, table in enumerate(tables):
        shard = pc.cast(pc.add(table.column("shard"), number * PART), pa.int32())
        moved.append(table.set_column(table.column_names.index("shard"), "shard", shard).replace_schema_metadata(None))
    whole = pa.concat_tables(moved, promote_options="default")
    return whole.append_column("copy", pa.array(_copies(whole.column("key").to_pylist()), pa.int32()))


def _copies(keys: list[str]) -> np.ndarray:
    """How often each key (n,) came before."""
    _, code = np.unique(np.asarray(keys, dtype=object).astype("U32"), return_inverse=True)
    order = np.argsort(code, kind="stable")
    place = np.arange(len(code))
    first = np.searchsorted(code[order], code[order], side="left")
    copies = np.empty(len(code), dtype=np.int32)
    copies[order] = place - first
    return copies


class _Progress:
    """A line now and then, once it takes longer than a moment."""

    def __init__(self, what: str, tars: int) -> None:
        self._what, self._tars, self._done, self._samples = what, tars, 0, 0
        self._start = time.monotonic()
        self._last = self._start - _LINE_SECONDS + _QUIET_SECONDS
        self._console = Console(stderr=True)

    def add(self, samples: int) -> None:
        self._done, self._samples = self._done + 1, self._samples + samples
        now = time.monotonic()
        if now - self._last < _LINE_SECONDS:
            return
        self._last, taken = now, now - self._start
        self._console.print(
            f"indexing {self._what}: {self._done}/{self._tars} tars, {self._samples:,} samples, "
            f"{self._samples / taken:,.0f}/s, {taken / self._done * (self._tars - self._done):.0f} s left",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
