"""Opens any WebDataset: indexes its tars once, several at a time, and caches the index.

The cache has a parquet file per `PART` tars in `$CURATE_CACHE/webdataset` (or ~/.cache/curate/webdataset), named by a
digest of the tars' names, sizes and times (or etags). So a changed tar is indexed again, an interrupted pass resumes,
and a corrupt file is rebuilt. The processes of one machine wait for the one that builds the index.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from curate.codec.listing import REASONS, FileInfo
from curate.codec.patterns import find_files, root_of
from curate.core.errors import InputError, StorageError
from curate.core.hashing import digest, digest_bytes
from curate.core.store.cache import cache_folder
from curate.core.store.storage import Storage
from distill.samples.cache import lock_folder
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.index import FRAMES, Index, IndexSource, load_index
from distill.samples.sources.index import VERSION as INDEX_VERSION
from distill.samples.sources.tar_index import CLASS, TarIndex, index_tar

VERSION = 3
"""To increase when the same tars would get a different index."""
PART = 64
_THREADS = 8
_BATCH = 1 << 17
_FIRST_LINE_SECONDS, _LINE_SECONDS = 2.0, 5.0
_ERRORS = b"broken"
_LOG = logging.getLogger("distill")
_CONTENT = ("shard", "row", "size", "width", "height", "text_size", "json_size", "members")

_FIELDS = {
    "row": pa.int32(), "name": pa.string(), "key": pa.string(), "ext": pa.string(), "offset": pa.int64(),
    "size": pa.int64(), "width": pa.int32(), "height": pa.int32(), "shard": pa.int32(), CLASS: pa.string(),
    "text_offset": pa.int64(), "text_size": pa.int64(), "json_offset": pa.int64(), "json_size": pa.int64(),
    "members": pa.int64(), FRAMES: pa.int16(),
}  # fmt: skip
_STRINGS = ("name", "ext", CLASS)
_ALWAYS = [name for name in _FIELDS if name != FRAMES]


def open_webdataset(url: str, place: str) -> Dataset:
    """A folder, glob or brace pattern of tars; symbolic links are followed. Logs a line per truncated tar.

    Raises InputError, which starts with `place`, if the URL names no tar, and if no sample has an image.
    """
    storage = root_of(url, "tar", place)
    tars = find_files(storage, url, "tar", place, follow_links=True)
    for tar in tars:
        if tar.reject:
            raise InputError(f"{place}: {storage.url_of(tar.path)}: {REASONS[tar.reject]}; fix it or remove it")
    parts = [_Part(storage, number, tars) for number in range(-(-len(tars) // PART))]
    _build_missing(parts)
    for _ in parts:  # each attempt rebuilds at most one part
        try:
            return _open_parts(storage, tars, parts)
        except _CorruptPart as error:
            _rebuild(error, parts)
    return _open_parts(storage, tars, parts)


class _Part:
    """Some of the tars, and the cached file of their index."""

    def __init__(self, storage: Storage, number: int, tars: Sequence[FileInfo]) -> None:
        self.storage, self.first = storage, number * PART
        self.tars = tars[self.first : self.first + PART]
        what = {"version": VERSION, "root": storage.url, "tars": [[tar.path, tar.size, tar.stamp] for tar in self.tars]}
        self.digest = digest(what)
        self.path = cache_folder("webdataset") / f"{self.digest}.parquet"

    def footer(self) -> tuple[int, list[str], list[str]]:
        """(number of samples, columns, errors of the tars)."""
        try:
            with pq.ParquetFile(self.path) as file:
                schema = file.schema_arrow
                return file.metadata.num_rows, schema.names, json.loads((schema.metadata or {})[_ERRORS])
        except _UNREADABLE as error:
            raise _CorruptPart(self, error) from error

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Batches of these columns, null if the part has no such column; shards are numbered over all parts."""
        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                have = set(file.schema_arrow.names)
                for batch in file.iter_batches(_BATCH, columns=[name for name in names if name in have]):
                    yield pa.record_batch([self._column(batch, name) for name in names], names=list(names))
        except _UNREADABLE as error:
            raise _CorruptPart(self, error) from error

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if name not in batch.schema.names:
            return pa.nulls(batch.num_rows, _FIELDS.get(name, pa.int64()))
        column = batch.column(name)
        return pc.add(column, pa.scalar(self.first, pa.int32())) if name == "shard" else column


_WAIT_SECONDS = 0.5
"""Delay before the first retry of a tar that could not be read; doubled for the second."""
_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError)


class _CorruptPart(Exception):
    def __init__(self, part: _Part, error: BaseException) -> None:
        super().__init__(f"{part.path}: corrupt ({' '.join(str(error).split())[:200]})")
        self.part = part


def _open_parts(storage: Storage, tars: Sequence[FileInfo], parts: Sequence[_Part]) -> Dataset:
    footers = [part.footer() for part in parts]
    errors = [line for _, _, lines in footers for line in lines]
    for line in errors:
        _LOG.warning("%s", line)
    rows = sum(count for count, _, _ in footers)
    if not rows:
        why = errors[0] if errors else "no sample has an image"
        raise InputError(f"{storage.url}: no samples in {len(tars)} tars ({why}); expected WebDataset tars of images")
    names = list(dict.fromkeys(name for _, names, _ in footers for name in names))
    numbers = [name for name in names if name not in _STRINGS]

    parts_digest = digest({"index": INDEX_VERSION, "parts": [part.digest for part in parts]})
    index = load_index(
        IndexSource(
            storage.url, storage.url_of(tars[0].path), parts_digest, rows, numbers,
            lambda: (batch for part in parts for batch in part.batches(numbers)), _content,
        )
    )  # fmt: skip
    read = partial(_read, parts, [count for count, _, _ in footers])
    return Dataset(storage, index, [*names, "copy"], read, [tar.path for tar in tars])


def _read(parts: Sequence[_Part], counts: Sequence[int], name: str) -> Iterator[pa.Array]:
    """A column. A part that became corrupt after it was opened is rebuilt once."""
    for part, count in zip(parts, counts, strict=True):
        try:
            found = [batch.column(0) for batch in part.batches([name])]
        except _CorruptPart as error:
            _rebuild(error, [part])
            try:
                found = [batch.column(0) for batch in part.batches([name])]
            except _CorruptPart as still:
                raise StorageError(f"{still}; set CURATE_CACHE to a folder elsewhere") from still
        if sum(map(len, found)) != count:
            raise InputError(f"{part.storage.url}: its tars changed after they were opened; run again")
        yield from found


def _rebuild(error: _CorruptPart, parts: Sequence[_Part]) -> None:
    _LOG.warning("%s; indexing its tars again", error)
    error.part.path.unlink(missing_ok=True)
    _build_missing(parts)


def _content(index: Index) -> str:
    """Digest of the samples and their order: keys stand for images, `members` for all other members."""
    numbers = (index.numbers(name).astype(np.int64) for name in _CONTENT)
    return digest_bytes([index.words.data, *(values.data for values in numbers)])


def _build_missing(parts: Sequence[_Part]) -> None:
    """Index the missing parts in turn. A part is published atomically, with all its tars."""
    if all(part.path.exists() for part in parts):
        return
    with lock_folder(parts[0].path.parent):
        todo = [part for part in parts if not part.path.exists()]
        progress = _Progress(parts[0].storage.url, sum(len(part.tars) for part in todo))
        with ThreadPoolExecutor(_THREADS) as threads:
            waiting: deque[tuple[_Part, list[Future[_TarRows]]]] = deque()
            for part in todo:  # two at a time, since results wait in memory
                waiting.append((part, [threads.submit(_index_one, part, shard) for shard in range(len(part.tars))]))
                if len(waiting) > 1:
                    _publish(*waiting.popleft(), progress)
            while waiting:
                _publish(*waiting.popleft(), progress)


_TarRows = tuple[pa.Table, list[str]]
"""(rows, errors) of one tar."""


def _publish(part: _Part, results: Sequence[Future[_TarRows]], progress: _Progress) -> None:
    tables, lines = [], list[str]()
    for result in results:
        table, errors = result.result()
        tables.append(table)
        lines += errors
        progress.add(len(table))
    whole = pa.concat_tables(tables, promote_options="default").replace_schema_metadata(
        {_ERRORS: json.dumps(lines).encode()}
    )
    Storage(str(part.path.parent)).publish_table(part.path.name, whole, write_page_checksum=True)


def _index_one(part: _Part, shard: int) -> _TarRows:
    """Index one tar; `shard` counts within the part."""
    tar = part.tars[shard]
    found = _index_with_retries(part, tar.path)
    rows = [{"shard": shard, **row} for row in found.rows]
    names = dict.fromkeys([*_ALWAYS, *(name for row in rows for name in row)])
    table = pa.Table.from_pylist(rows, schema=pa.schema([(name, _FIELDS.get(name, pa.int64())) for name in names]))
    place = f"{part.storage.url_of(tar.path)}: {len(rows)} samples"
    if found.error:
        return table, [f"{place} before an error of the tar ({found.error}); fetch the tar again for the rest"]
    if found.without_image:
        return table, [f"{place}; skipped {found.without_image} without an image"]
    return table, []


def _index_with_retries(part: _Part, name: str) -> TarIndex:
    """Retry a tar that cannot be read, and raise InputError in the end: the index is cached permanently, so a temporary
    failure must not count as an empty tar. A truncated tar is not retried."""
    tries = Retrying(
        retry=retry_if_exception_type(OSError),
        stop=stop_after_attempt(3),
        wait=wait_exponential(_WAIT_SECONDS),
        reraise=True,
    )
    try:
        return tries(index_tar, part.storage, name)
    except OSError as error:
        url = part.storage.url_of(name)
        raise InputError(
            f"{url}: cannot read it ({type(error).__name__}: {error}); check its permissions or remove it"
        ) from error


class _Progress:
    """Prints a line every few seconds."""

    def __init__(self, what: str, tars: int) -> None:
        self._what, self._tars, self._done, self._samples = what, tars, 0, 0
        self._start = time.monotonic()
        self._last = self._start - _LINE_SECONDS + _FIRST_LINE_SECONDS
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
