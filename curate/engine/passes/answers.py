"""Answers of costly stages, found by what they were computed from: the same image is embedded once, whatever shard,
pool or run it turns up in.

    facts/<op>/<stage>/index/<digest>.parquet    input -> the table and row that has its answer, sorted by input

`<stage>` is the stage's fingerprint without the columns that it reads: a changed rule upstream is another fingerprint,
but the rows whose values it did not change have the same inputs. Looked up first in the shard's own tables under a few
other fingerprints, then in what this process has just written, then in the index over all shards as it was when the
pass began. A unit adds one file; once a pass is complete, workers join the small ones.
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

from curate.core import facts
from curate.core.errors import CorruptError
from curate.core.hashing import digest
from curate.core.store.storage import Storage

FOLDER = "index"
OTHERS = 4
"""Other fingerprints of a stage whose tables of the same shard are looked into."""
LEAST_FILES, MOST_FILES = 16, 256
"""Files of about one size in an index that are then joined; and how many one task joins."""
MOST_BYTES = 256 << 20
"""Size from which a file of an index is left as it is."""
MOST_TABLES = 16
"""Tables with answers that one stage of a unit keeps in memory."""
LOOKS = 100
"""How often an index is listed again because files of it were joined meanwhile."""
HELD_BYTES = 256 << 20
"""Memory for files of indexes that a process keeps: of some six million answers the lines, or of 30 million the first
word of each input, which is enough to know that there is no answer. Beyond, each unit searches the files."""
LINE_BYTES, WORD_BYTES = 40, 8
"""Of an answer in memory, about."""
UNUSED_SECONDS = 600.0
"""After how long a file makes room for others."""
RECENT = 1 << 17
"""Lines that a process has written last, and keeps."""
Answer = tuple[pa.Table, int]  # a table of facts, and a row of it
Place = tuple[str, str, int]  # folder of a fingerprint, shard, number of its table


def inputs_of(table: pa.Table, names: Sequence[str], content: Sequence[str | None] | None) -> list[bytes]:
    """Digest (16 bytes) of every value that each row (n,) is computed from: the columns that the stage reads, and the
    digest of the image's bytes where it looks at images."""
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
    """What earlier runs and other shards have computed for one stage."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        own: Mapping[str, Sequence[tuple[str, int]]],
        files: Sequence[str] = (),
    ) -> None:
        self.storage, self.folder, self.own, self.files = storage, folder, own, tuple(files)
        """`own`: shard -> (folder of another fingerprint, number of its table). `files`: those of the index."""
        self._tables: OrderedDict[tuple[str, str], tuple[pa.Table, dict[bytes, int]] | None] = OrderedDict()

    def find(self, wanted: Mapping[bytes, str]) -> dict[bytes, Answer]:
        """Input -> answer, for those of `wanted` (input -> its shard) that have one. Only final rows are answers."""
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
        """What this process has just written. No file of the index that we know has it."""
        lines = _memory.recent(self.storage.url_of(self.folder))
        return [(given, lines[given]) for given in missing if given in lines]

    def _among(self, path: str, shard: str, number: int, wanted: Sequence[bytes]) -> dict[bytes, Answer]:
        """Answers to some inputs out of one table, or out of the shard's highest one if gc has removed it."""
        held = self._final(path, shard, number) if wanted else None
        return {} if held is None else {given: (held[0], held[1][given]) for given in wanted if given in held[1]}

    def _final(self, path: str, shard: str, number: int) -> tuple[pa.Table, dict[bytes, int]] | None:
        """A table, and the rows of it that are answers, by input. The last few tables are kept."""
        if (path, shard) in self._tables:
            self._tables.move_to_end((path, shard))
            return self._tables[path, shard]
        table = self._read(path, shard, number)
        held = None
        if table is not None:
            inputs = table.column(facts.INPUT).to_pylist()
            held = table, {inputs[row]: int(row) for row in np.flatnonzero(facts.rank(table) == 2)}
        self._tables[path, shard] = held
        while len(self._tables) > MOST_TABLES:
            self._tables.popitem(last=False)
        return held

    def _read(self, path: str, shard: str, number: int) -> pa.Table | None:
        """A table holds all rows of those before it, so the highest will do. None where none can be read: what it had
        is computed again."""
        try:
            return facts.read(self.storage, path, shard, number)
        except CorruptError:
            there = facts.latest(f"{shard}/{name}" for name in self.storage.list(f"{path}/{shard}"))
        try:
            return facts.read(self.storage, path, shard, there[shard]) if there.get(shard, number) != number else None
        except CorruptError:
            return None

    def _places(self, missing: list[bytes]) -> list[tuple[bytes, Place]]:
        """Lines of the index for these inputs. Files that were joined meanwhile are looked for again."""
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
        held = _memory.file(self.storage, path)
        if held is not None:
            words = _first_words(wanted)
            low, high = np.searchsorted(held.words, words, "left"), np.searchsorted(held.words, words, "right")
            wanted = wanted.filter(pa.array(low < high))
            if not len(wanted):
                return SCHEMA.empty_table()
            table = held.table  # another unit may let go of it meanwhile
            if table is not None:
                near = sorted({(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True) if a < b})
                rows = table.take(pa.array(np.concatenate([np.arange(a, b) for a, b in near])))
                return rows.filter(pc.is_in(rows.column("input"), wanted)).cast(SCHEMA)
        return self.storage.read_table(path, filters=pc.field("input").isin(wanted)).cast(SCHEMA)


def _pairs(table: pa.Table) -> list[tuple[bytes, Place]]:
    columns = [table.column(name).to_pylist() for name in ("input", "path", "shard", "number")]
    return [(given, (path, shard, number)) for given, path, shard, number in zip(*columns, strict=True)]


def _first_words(inputs: pa.Array) -> NDArray[np.uint64]:
    """The first 8 bytes of each digest, which sort as the digests do."""
    both = np.frombuffer(inputs.buffers()[1] or b"", ">u8")[2 * inputs.offset :][: 2 * len(inputs)]
    return both[::2].astype(np.uint64)


@dataclass
class _File:
    """What is kept of a file of an index."""

    words: NDArray[np.uint64]
    """First words of the inputs, ascending."""
    table: pa.Table | None
    used: float

    @property
    def size(self) -> int:
        return len(self.words) * (WORD_BYTES + (LINE_BYTES if self.table is not None else 0))


class _Memory:
    """What a process keeps of indexes: files while there is room, and the lines that it has written last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}
        self._recent: dict[str, OrderedDict[bytes, Place]] = {}

    def recent(self, folder: str) -> Mapping[bytes, Place]:
        return self._recent.get(folder, {})

    def wrote(self, folder: str, lines: Iterable[tuple[bytes, str, str, int]]) -> None:
        with self._lock:
            held = self._recent.setdefault(folder, OrderedDict())
            for given, path, shard, number in lines:
                held[given] = path, shard, number
            while len(held) > RECENT:
                held.popitem(last=False)

    def file(self, storage: Storage, path: str) -> _File | None:
        """What is kept of a file; None if there is no room for it. Units of one process wait for each other, and do not
        read it twice."""
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
        """Free bytes. Where they are too few, words take the place of lines."""
        for held in [None, *self._files.values()]:
            if held is not None:
                held.table = None
            free = HELD_BYTES - sum(other.size for other in self._files.values())
            if free >= size:
                break
        return free

    def _read(self, storage: Storage, path: str, now: float) -> _File | None:
        with storage.open(path) as source, pq.ParquetFile(source, read_dictionary=["path", "shard"]) as file:
            rows = file.metadata.num_rows
            free = self._room(rows * WORD_BYTES)
            if rows * WORD_BYTES > free:
                self._files = {url: held for url, held in self._files.items() if now - held.used < UNUSED_SECONDS}
                return None
            whole = rows * (WORD_BYTES + LINE_BYTES) <= free
            table = file.read(columns=None if whole else ["input"]).combine_chunks()
        column = table.column("input")
        words = _first_words(column.chunk(0)) if rows else np.zeros(0, np.uint64)
        return _File(words, table if whole else None, now)


_memory = _Memory()


SCHEMA = pa.schema(
    [
        pa.field("input", pa.binary(16)),
        pa.field("path", pa.string()),
        pa.field("shard", pa.string()),
        pa.field("number", pa.int32()),
    ]
)


def remember(storage: Storage, folder: str, lines: Iterable[tuple[bytes, str, str, int]]) -> None:
    """Add (input, path, shard, number) of new answers to a stage's index, as a file of their own."""
    rows = sorted(set(lines))
    if rows:
        columns = [
            pa.array(list(values), item.type) for values, item in zip(zip(*rows, strict=True), SCHEMA, strict=True)
        ]
        name = digest([[row[0].hex(), *row[1:]] for row in rows])
        _write(storage, f"{folder}/{FOLDER}/{name}.parquet", pa.table(columns, schema=SCHEMA))
        _memory.wrote(storage.url_of(folder), rows)


def _write(storage: Storage, path: str, table: pa.Table) -> None:
    storage.publish_table(path, table, row_group_size=1 << 16)


@dataclass(frozen=True)
class Join:
    """Files of an index that become one."""

    storage: Storage
    folder: str
    files: tuple[str, ...]


def joins(storage: Storage, folder: str) -> list[Join]:
    """What to join, so that an index has few files and a line is rewritten a few times: files of about one size."""
    tiers: dict[int, list[str]] = {}
    for file, size in sorted(storage.list(f"{folder}/{FOLDER}").items()):
        if size < MOST_BYTES:
            tiers.setdefault(max(0, size.bit_length() - 14) // 4, []).append(file)
    return [
        Join(storage, folder, tuple(files[start : start + MOST_FILES]))
        for files in tiers.values()
        for start in range(0, len(files), MOST_FILES)
        if len(files) - start >= LEAST_FILES
    ]


def join(task: Join) -> None:
    """Make one file of several. What is removed is in the new file first; who still looks for it lists again."""
    paths = [f"{task.folder}/{FOLDER}/{file}" for file in task.files]
    try:
        whole = pa.concat_tables([task.storage.read_table(path) for path in paths])
    except FileNotFoundError:  # another run was first
        return
    once = whole.group_by(whole.column_names).aggregate([]).select(SCHEMA.names).sort_by("input")
    _write(task.storage, f"{task.folder}/{FOLDER}/{digest(list(task.files))}.parquet", once.cast(SCHEMA))
    for path in paths:
        task.storage.remove_file(path)
