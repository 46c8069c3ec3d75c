"""Cache of costly stages' results, keyed by a digest of their inputs: an image is embedded once, in any shard, pool or
run that has it.

    facts/<op>/<stage>/index/<digest>.parquet    input -> the table with its answer, sorted by input

`<stage>` is the stage's fingerprint without the columns that it reads. A changed rule upstream changes the fingerprint,
but rows whose values it did not change keep their inputs. A look-up searches the shard's own tables under a few other
fingerprints, then the lines that this process wrote last, then the index over all shards as listed when the pass began.
Each unit adds one file; once a pass is complete, workers merge small files.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.core.errors import CorruptError
from curate.core.hashing import digest
from curate.core.nouns import facts
from curate.core.store.storage import Storage

FOLDER = "index"
OTHERS = 4
"""Other fingerprints of a stage whose tables of the same shard are searched."""
LEAST_FILES, MOST_FILES = 16, 256
"""How many index files of similar size are merged: the least, and the most that one task merges."""
MOST_BYTES = 256 << 20
"""Index files of this size or more are not merged."""
MOST_TABLES = 16
"""Tables with answers that one stage of a unit keeps in memory."""
LOOKS = 100
"""How often a look-up lists an index again because its files were merged meanwhile."""
HELD_BYTES = 256 << 20
"""Memory for index files that a process keeps: the lines of about six million answers, or only the first word of each
input for 30 million, which is enough to rule an answer out. Beyond that, each unit searches the files."""
LINE_BYTES, WORD_BYTES = 40, 8
"""Approximate bytes of an answer in memory."""
UNUSED_SECONDS = 600.0
"""Files unused for this long make room for others."""
RECENT = 1 << 17
"""Lines that a process wrote last and keeps."""
GROUP_ROWS = 1 << 16
"""Lines of a row group of an index file."""
Answer = tuple[pa.Table, int]  # a table of facts, and a row of it
Place = tuple[str, str, int]  # folder of a fingerprint, shard, number of its table


def inputs_of(table: pa.Table, names: Sequence[str], content: Sequence[str | None] | None) -> list[bytes]:
    """Digests (16 bytes) of the inputs of each row (n,): the columns that the stage reads and, if it reads images, the
    digest of the image's bytes (`content`)."""
    columns = [table.column(name).to_pylist() for name in sorted(names)]
    values = zip(*columns, strict=True) if columns else ((),) * table.num_rows
    digests = content if content is not None else [None] * table.num_rows
    return [_digest(sha, row) for sha, row in zip(digests, values, strict=True)]


def _digest(content: str | None, values: tuple[Any, ...]) -> bytes:
    text = json.dumps([content, values], ensure_ascii=False, default=_plain)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


class Answers:
    """Results of earlier runs and other shards for one stage."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        own: Mapping[str, Sequence[tuple[str, int]]],
        files: Sequence[str] = (),
    ) -> None:
        self.storage, self.folder, self.own, self.files = storage, folder, own, tuple(files)
        """`own`: shard -> (folder of another fingerprint, number of its table). `files`: of the index."""
        self._tables: OrderedDict[tuple[str, str], tuple[pa.Table, dict[bytes, int]] | None] = OrderedDict()

    def find(self, wanted: Mapping[bytes, str]) -> dict[bytes, Answer]:
        """Input -> answer, for inputs of `wanted` (input -> its shard) that have one. Only final rows are answers."""
        found: dict[bytes, Answer] = {}
        for shard in dict.fromkeys(wanted.values()):
            for path, number in self.own.get(shard, ()):
                found |= self._among(path, shard, number, [given for given, of in wanted.items() if of == shard])
        for places in (self._recent, self._places):
            missing = [given for given in wanted if given not in found]
            by_table: dict[Place, list[bytes]] = {}
            for given, place in places(missing) if missing else ():
                by_table.setdefault(place, []).append(given)
            for place, inputs in by_table.items():
                found |= self._among(*place, [given for given in inputs if given not in found])
        return found

    def _recent(self, missing: list[bytes]) -> list[tuple[bytes, Place]]:
        """Lines that this process wrote after the index was listed."""
        lines: Mapping[bytes, Place] = _cache.recent.get(self.storage.url_of(self.folder), {})
        return [(given, lines[given]) for given in missing if given in lines]

    def _among(self, path: str, shard: str, number: int, wanted: Sequence[bytes]) -> dict[bytes, Answer]:
        """Answers to some inputs in one table, or in the shard's highest table if gc has removed that one."""
        final = self._final(path, shard, number) if wanted else None
        return {} if final is None else {given: (final[0], final[1][given]) for given in wanted if given in final[1]}

    def _final(self, path: str, shard: str, number: int) -> tuple[pa.Table, dict[bytes, int]] | None:
        """A table, and input -> row of its answers. The last MOST_TABLES tables are kept."""
        if (path, shard) in self._tables:
            self._tables.move_to_end((path, shard))
            return self._tables[path, shard]
        table = self._read(path, shard, number)
        final = None
        if table is not None:
            inputs = table.column(facts.INPUT).to_pylist()
            final = table, {inputs[row]: int(row) for row in np.flatnonzero(facts.rank(table) == 2)}
        self._tables[path, shard] = final
        while len(self._tables) > MOST_TABLES:
            self._tables.popitem(last=False)
        return final

    def _read(self, path: str, shard: str, number: int) -> pa.Table | None:
        """A table of the shard: the highest also serves, because it has all rows of the tables before it. None if it is
        corrupt too: its rows are recomputed."""
        try:
            return facts.read(self.storage, path, shard, number)
        except CorruptError:
            latest = facts.latest(f"{shard}/{name}" for name in self.storage.list(f"{path}/{shard}")).get(shard, number)
        try:
            return facts.read(self.storage, path, shard, latest) if latest != number else None
        except CorruptError:
            return None

    def _places(self, missing: list[bytes]) -> list[tuple[bytes, Place]]:
        """Lines of the index for these inputs; lists the index again if its files were merged meanwhile."""
        wanted = pa.array(sorted(missing), pa.binary(16))
        for _ in range(LOOKS):
            try:
                tables = [self._lines(file, wanted) for file in self.files]
                return [line for table in tables for line in _pairs(table)]
            except FileNotFoundError:
                self.files = tuple(sorted(self.storage.list(f"{self.folder}/{FOLDER}")))
        return []

    def _lines(self, file: str, wanted: pa.Array) -> pa.Table:
        path = f"{self.folder}/{FOLDER}/{file}"
        cached = _cache.file(self.storage, path)
        if cached is not None:
            words = _first_words(wanted)
            low, high = np.searchsorted(cached.words, words, "left"), np.searchsorted(cached.words, words, "right")
            wanted = wanted.filter(pa.array(low < high))
            if not len(wanted):
                return SCHEMA.empty_table()
            table = cached.table  # another unit may drop it meanwhile
            if table is not None:
                near = sorted({(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True) if a < b})
                rows = table.take(pa.array(np.concatenate([np.arange(a, b) for a, b in near])))
                return rows.filter(pc.is_in(rows.column("input"), wanted)).cast(SCHEMA)
        return self.storage.read_table(path, filters=pc.field("input").isin(wanted)).cast(SCHEMA)


def _pairs(table: pa.Table) -> list[tuple[bytes, Place]]:
    columns = [table.column(name).to_pylist() for name in ("input", "path", "shard", "number")]
    return [(given, (path, shard, number)) for given, path, shard, number in zip(*columns, strict=True)]


def _first_words(inputs: pa.Array) -> NDArray[np.uint64]:
    """The first 8 bytes of each digest, as integers in the same order."""
    both = np.frombuffer(inputs.buffers()[1] or b"", ">u8")[2 * inputs.offset :][: 2 * len(inputs)]
    return both[::2].astype(np.uint64)


@dataclass
class _File:
    """An index file in memory."""

    words: NDArray[np.uint64]
    """First words of the inputs, ascending."""
    table: pa.Table | None
    used: float

    @property
    def size(self) -> int:
        return len(self.words) * (WORD_BYTES + (LINE_BYTES if self.table is not None else 0))


class _Cache:
    """Index files in memory while there is room, and the lines that the process wrote last."""

    def __init__(self) -> None:
        self.recent: dict[str, OrderedDict[bytes, Place]] = {}
        """URL of an index -> its last lines, input -> place."""
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}

    def add(self, folder: str, lines: Iterable[tuple[bytes, str, str, int]]) -> None:
        with self._lock:
            recent = self.recent.setdefault(folder, OrderedDict())
            for given, path, shard, number in lines:
                recent[given] = path, shard, number
            while len(recent) > RECENT:
                recent.popitem(last=False)

    def file(self, storage: Storage, path: str) -> _File | None:
        """A file in memory; None if there is no room for it. Units of the process wait for each other: a file is
        read once."""
        url, now = storage.url_of(path), time.monotonic()
        with self._lock:
            found = self._files.get(url)
            if found is None:
                found = self._read(storage, path, now)
                if found is not None:
                    self._files[url] = found
            if found is not None:
                found.used = now
            return found

    def _room(self, size: int) -> int:
        """Free bytes; if these are too few, files drop their lines and keep the words."""
        for cached in [None, *self._files.values()]:
            if cached is not None:
                cached.table = None
            free = HELD_BYTES - sum(other.size for other in self._files.values())
            if free >= size:
                break
        return free

    def _read(self, storage: Storage, path: str, now: float) -> _File | None:
        with storage.open(path) as source, pq.ParquetFile(source, read_dictionary=["path", "shard"]) as parquet:
            rows = parquet.metadata.num_rows
            free = self._room(rows * WORD_BYTES)
            if rows * WORD_BYTES > free:
                self._files = {url: file for url, file in self._files.items() if now - file.used < UNUSED_SECONDS}
                return None
            whole = rows * (WORD_BYTES + LINE_BYTES) <= free
            table = parquet.read(columns=None if whole else ["input"]).combine_chunks()
        column = table.column("input")
        words = _first_words(column.chunk(0)) if rows else np.zeros(0, np.uint64)
        return _File(words, table if whole else None, now)


_cache = _Cache()


SCHEMA = pa.schema(
    [
        pa.field("input", pa.binary(16)),
        pa.field("path", pa.string()),
        pa.field("shard", pa.string()),
        pa.field("number", pa.int32()),
    ]
)


def add(storage: Storage, folder: str, lines: Iterable[tuple[bytes, str, str, int]]) -> None:
    """Add (input, path, shard, number) of new answers to a stage's index, as a new file."""
    rows = sorted(set(lines))
    if rows:
        columns = [
            pa.array(list(values), item.type) for values, item in zip(zip(*rows, strict=True), SCHEMA, strict=True)
        ]
        name = digest([[row[0].hex(), *row[1:]] for row in rows])
        table = pa.table(columns, schema=SCHEMA)
        storage.publish_table(f"{folder}/{FOLDER}/{name}.parquet", table, row_group_size=GROUP_ROWS)
        _cache.add(storage.url_of(folder), rows)


@dataclass(frozen=True)
class MergeIndexTask:
    """Files of an index to merge into one."""

    storage: Storage
    folder: str
    files: tuple[str, ...]


def merges(storage: Storage, folder: str) -> list[MergeIndexTask]:
    """Files of similar size to merge, so that an index has few files and a line is rewritten only a few times."""
    tiers: dict[int, list[str]] = {}
    for file, size in sorted(storage.list(f"{folder}/{FOLDER}").items()):
        if size < MOST_BYTES:
            tiers.setdefault(max(0, size.bit_length() - 14) // 4, []).append(file)
    return [
        MergeIndexTask(storage, folder, tuple(files[start : start + MOST_FILES]))
        for files in tiers.values()
        for start in range(0, len(files), MOST_FILES)
        if len(files) - start >= LEAST_FILES
    ]


def merge(task: MergeIndexTask) -> None:
    """Merge files, and remove them once the new file is published; readers that miss them list the index again."""
    paths = [f"{task.folder}/{FOLDER}/{file}" for file in task.files]
    try:
        whole = pa.concat_tables([task.storage.read_table(path) for path in paths])
    except FileNotFoundError:  # another run merged them first
        return
    once = whole.group_by(whole.column_names).aggregate([]).select(SCHEMA.names).sort_by("input")
    path = f"{task.folder}/{FOLDER}/{digest(list(task.files))}.parquet"
    task.storage.publish_table(path, once.cast(SCHEMA), row_group_size=GROUP_ROWS)
    for path in paths:
        task.storage.remove_file(path)
