"""Any WebDataset as a Dataset: its tars are indexed once, several at a time, and the index is kept.

What is kept are parquet files for `PART` tars each, in `$CURATE_CACHE/webdataset` (or ~/.cache/curate/webdataset),
named by a digest of the tars' names, sizes and times (or etags): a changed tar is indexed again, an interrupted pass
goes on, a damaged file is made anew. Processes of one machine wait for the one that is at it.
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

from curate.core.errors import InputError, StorageError
from curate.core.hashing import digest, digest_bytes
from curate.core.store.cache import cache_folder
from curate.core.store.storage import Storage
from distill.samples.cache import locked
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.find_tars import Tar
from distill.samples.sources.index import VERSION as INDEX_VERSION
from distill.samples.sources.index import Index, Table, made_index
from distill.samples.sources.tar_index import CLASS, TarIndex, index_tar

VERSION = 2
"""Rises when the same tars would be indexed in another way."""
PART = 64
_THREADS = 8
_BATCH = 1 << 17
_QUIET_SECONDS, _LINE_SECONDS = 2.0, 5.0
_BROKEN = b"broken"
_LOG = logging.getLogger("distill")
_CONTENT = ("shard", "row", "size", "width", "height", "text_size", "json_size", "members")

_FIELDS = {
    "row": pa.int32(), "name": pa.string(), "key": pa.string(), "ext": pa.string(), "offset": pa.int64(),
    "size": pa.int64(), "width": pa.int32(), "height": pa.int32(), "shard": pa.int32(), CLASS: pa.string(),
    "text_offset": pa.int64(), "text_size": pa.int64(), "json_offset": pa.int64(), "json_size": pa.int64(),
    "members": pa.int64(),
}  # fmt: skip
_STRINGS = ("name", "ext", CLASS)


def open_webdataset(storage: Storage, tars: Sequence[Tar]) -> Dataset:
    """Raises InputError when no tar has a sample with a picture; a tar that is cut is said in one line of the log."""
    parts = [_Part(storage, number, tars) for number in range(-(-len(tars) // PART))]
    _complete(parts)
    for _ in parts:  # each attempt makes a part anew, if any
        try:
            return _opened(storage, tars, parts)
        except _Damaged as error:
            _again(error, parts)
    return _opened(storage, tars, parts)


class _Part:
    """Some of the tars, and the file that says what is in them."""

    def __init__(self, storage: Storage, number: int, tars: Sequence[Tar]) -> None:
        self.storage, self.first = storage, number * PART
        self.tars = tars[self.first : self.first + PART]
        what = {"version": VERSION, "root": storage.url, "tars": [[tar.name, tar.size, tar.stamp] for tar in self.tars]}
        self.digest = digest(what)
        self.path = cache_folder("webdataset") / f"{self.digest}.parquet"

    def footer(self) -> tuple[int, list[str], list[str]]:
        """Samples, columns, and what is wrong with the tars."""
        try:
            with pq.ParquetFile(self.path) as file:
                schema = file.schema_arrow
                return file.metadata.num_rows, schema.names, json.loads((schema.metadata or {})[_BROKEN])
        except _UNREADABLE as error:
            raise _Damaged(self, error) from error

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """With nulls where the part has no such column; shards count over all parts."""
        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                have = set(file.schema_arrow.names)
                for batch in file.iter_batches(_BATCH, columns=[name for name in names if name in have]):
                    yield pa.record_batch([self._column(batch, name) for name in names], names=list(names))
        except _UNREADABLE as error:
            raise _Damaged(self, error) from error

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if name not in batch.schema.names:
            return pa.nulls(batch.num_rows, _FIELDS.get(name, pa.int64()))
        column = batch.column(name)
        return pc.add(column, pa.scalar(self.first, pa.int32())) if name == "shard" else column


_WAIT_SECONDS = 0.5
"""Before a tar that could not be read is tried again; then twice that."""
_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError)


class _Damaged(Exception):
    def __init__(self, part: _Part, error: BaseException) -> None:
        super().__init__(f"{part.path}: cannot be read ({' '.join(str(error).split())[:200]})")
        self.part = part


def _opened(storage: Storage, tars: Sequence[Tar], parts: Sequence[_Part]) -> Dataset:
    footers = [part.footer() for part in parts]
    said = [line for _, _, lines in footers for line in lines]
    for line in said:
        _LOG.warning("%s", line)
    rows = sum(count for count, _, _ in footers)
    if not rows:
        why = said[0] if said else "no sample has a picture"
        raise InputError(f"{storage.url}: nothing to read in {len(tars)} tars ({why}); expected WebDataset tars")
    names = list(dict.fromkeys(name for _, names, _ in footers for name in names))
    numbers = [name for name in names if name not in _STRINGS]

    parts_digest = digest({"index": INDEX_VERSION, "parts": [part.digest for part in parts]})
    index = made_index(
        Table(
            storage.url, storage.url_of(tars[0].name), parts_digest, rows, numbers,
            lambda: (batch for part in parts for batch in part.batches(numbers)), _content,
        )
    )  # fmt: skip
    read = partial(_read, parts, [count for count, _, _ in footers])
    return Dataset(storage, index, [*names, "copy"], read, [tar.name for tar in tars])


def _read(parts: Sequence[_Part], counts: Sequence[int], name: str) -> Iterator[pa.Array]:
    """A column; a file that was damaged after it was opened is made again, once."""
    for part, count in zip(parts, counts, strict=True):
        try:
            found = [batch.column(0) for batch in part.batches([name])]
        except _Damaged as error:
            _again(error, [part])
            try:
                found = [batch.column(0) for batch in part.batches([name])]
            except _Damaged as still:
                raise StorageError(f"{still}; set CURATE_CACHE to a folder elsewhere") from still
        if sum(map(len, found)) != count:
            raise InputError(f"{part.storage.url}: its tars changed after they were opened; start again")
        yield from found


def _again(error: _Damaged, parts: Sequence[_Part]) -> None:
    _LOG.warning("%s; its tars are indexed again", error)
    error.part.path.unlink(missing_ok=True)
    _complete(parts)


def _content(index: Index) -> str:
    """Digest of what is in which order, wherever it lies: a key stands for its picture, `members` for the rest."""
    numbers = (index.numbers(name).astype(np.int64) for name in _CONTENT)
    return digest_bytes([index.words.data, *(values.data for values in numbers)])


def _complete(parts: Sequence[_Part]) -> None:
    """Index what is missing, part by part, a part with all its tars or not at all."""
    if all(part.path.exists() for part in parts):
        return
    with locked(parts[0].path.parent):
        todo = [part for part in parts if not part.path.exists()]
        progress = _Progress(parts[0].storage.url, sum(len(part.tars) for part in todo))
        with ThreadPoolExecutor(_THREADS) as threads:
            waiting: deque[tuple[_Part, list[Future[_Found]]]] = deque()
            for part in todo:  # two at a time: answers wait in memory
                waiting.append((part, [threads.submit(_one, part, shard) for shard in range(len(part.tars))]))
                if len(waiting) > 1:
                    _finish(*waiting.popleft(), progress)
            while waiting:
                _finish(*waiting.popleft(), progress)


_Found = tuple[pa.Table, list[str]]


def _finish(part: _Part, answers: Sequence[Future[_Found]], progress: _Progress) -> None:
    tables, lines = [], list[str]()
    for answer in answers:
        table, said = answer.result()
        tables.append(table)
        lines += said
        progress.add(len(table))
    whole = pa.concat_tables(tables, promote_options="default").replace_schema_metadata(
        {_BROKEN: json.dumps(lines).encode()}
    )
    Storage(str(part.path.parent)).publish_table(part.path.name, whole, write_page_checksum=True)


def _one(part: _Part, shard: int) -> _Found:
    """Rows of one tar, and what there is to say of it; `shard` counts within the part."""
    tar = part.tars[shard]
    found = _indexed(part, tar.name)
    rows = [{"shard": shard, **row} for row in found.rows]
    names = dict.fromkeys([*_FIELDS, *(name for row in rows for name in row)])
    table = pa.Table.from_pylist(rows, schema=pa.schema([(name, _FIELDS.get(name, pa.int64())) for name in names]))
    place = f"{part.storage.url_of(tar.name)}: {len(rows)} samples"
    if found.broken:
        return table, [f"{place} before the tar breaks ({found.broken}); fetch it again for the rest"]
    if found.without_picture:
        return table, [f"{place}, and {found.without_picture} without a picture, which are left out"]
    return table, []


def _indexed(part: _Part, name: str) -> TarIndex:
    """What is kept must hold for good, so a tar that only could not be read just now is tried again, and then ends the
    pass; one that ends early is another matter. Raises InputError."""
    tries = Retrying(
        retry=retry_if_exception_type(OSError),
        stop=stop_after_attempt(3),
        wait=wait_exponential(_WAIT_SECONDS),
        reraise=True,
    )
    try:
        return tries(index_tar, part.storage, name)
    except OSError as error:
        said = f"{part.storage.url_of(name)}: cannot be read ({type(error).__name__}: {error})"
        raise InputError(f"{said}; make it readable or take it out of the source, and run again") from error


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
