"""Answers of costly stages, found by what they were computed from: the same image is embedded once, whatever shard,
pool or run it turns up in.

    facts/<op>/<stage>/index/<digest>.parquet    input -> the table and row that has its answer, sorted by input

`<stage>` is the stage's fingerprint without the columns that it reads: a changed rule upstream is another fingerprint,
but the rows whose values it did not change have the same inputs. Looked up first in the shard's own tables under a few
other fingerprints, then in the index over all shards.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core import facts
from curate.core.errors import CorruptError
from curate.core.hashing import digest
from curate.core.storage import Storage

FOLDER = "index"
OTHERS = 4
"""Other fingerprints of a stage whose tables of the same shard are looked into."""
MOST_FILES = 16
"""Files of about one size in an index, that are then joined."""
MOST_BYTES = 256 << 20
"""Size from which a file of an index is left as it is."""
MOST_TABLES = 16
"""Tables with answers that one stage of a unit keeps in memory."""
LOOKS = 100
"""How often an index is listed again because files of it were joined meanwhile."""
Answer = tuple[pa.Table, int]  # a table of facts, and a row of it


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

    def __init__(self, storage: Storage, folder: str, own: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        self.storage, self.folder, self.own = storage, folder, own
        """`own`: shard -> (folder of another fingerprint, number of its table)."""
        self._tables: OrderedDict[tuple[str, str], tuple[pa.Table, dict[bytes, int]] | None] = OrderedDict()

    def find(self, wanted: Mapping[bytes, str]) -> dict[bytes, Answer]:
        """Input -> answer, for those of `wanted` (input -> its shard) that have one. Only final rows are answers."""
        found: dict[bytes, Answer] = {}
        for shard in dict.fromkeys(wanted.values()):
            for path, number in self.own.get(shard, ()):
                found |= self._among(path, shard, number, [given for given, of in wanted.items() if of == shard])
        missing = [given for given in wanted if given not in found]
        by_table: dict[tuple[str, str, int], list[bytes]] = {}
        for line in self._places(missing).to_pylist() if missing else ():
            by_table.setdefault((line["path"], line["shard"], line["number"]), []).append(line["input"])
        for (path, shard, number), inputs in by_table.items():
            found |= self._among(path, shard, number, [given for given in inputs if given not in found])
        return found

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

    def _places(self, missing: list[bytes]) -> pa.Table:
        """Lines of the index for these inputs. Files that were joined meanwhile are looked for again."""
        wanted = pa.array(sorted(missing), pa.binary(16))
        for _ in range(LOOKS):
            try:
                parts = [self._lines(file, wanted) for file in sorted(self.storage.list(f"{self.folder}/{FOLDER}"))]
                return pa.concat_tables([SCHEMA.empty_table(), *parts])
            except FileNotFoundError:
                continue
        return SCHEMA.empty_table()

    def _lines(self, file: str, wanted: pa.Array) -> pa.Table:
        found = self.storage.read_table(f"{self.folder}/{FOLDER}/{file}", filters=pc.field("input").isin(wanted))
        return found.cast(SCHEMA)


SCHEMA = pa.schema(
    [
        pa.field("input", pa.binary(16)),
        pa.field("path", pa.string()),
        pa.field("shard", pa.string()),
        pa.field("number", pa.int32()),
    ]
)


def remember(storage: Storage, folder: str, lines: Iterable[tuple[bytes, str, str, int]]) -> None:
    """Add (input, path, shard, number) of new answers to a stage's index, and keep its files few."""
    rows = sorted(set(lines))
    if rows:
        columns = [
            pa.array(list(values), item.type) for values, item in zip(zip(*rows, strict=True), SCHEMA, strict=True)
        ]
        name = digest([[row[0].hex(), *row[1:]] for row in rows])
        _write(storage, f"{folder}/{FOLDER}/{name}.parquet", pa.table(columns, schema=SCHEMA))
        _join(storage, folder)


def _write(storage: Storage, path: str, table: pa.Table) -> None:
    storage.publish_table(path, table, row_group_size=1 << 16)


def _join(storage: Storage, folder: str) -> None:
    """Make one file of MOST_FILES that are about as large: so there are few, and a line is rewritten a few times. What
    is removed is in the new file first; who still looks for it lists again."""
    tiers: dict[int, list[str]] = {}
    for file, size in sorted(storage.list(f"{folder}/{FOLDER}").items()):
        if size < MOST_BYTES:
            tiers.setdefault(max(0, size.bit_length() - 14) // 4, []).append(file)
    for files in tiers.values():
        if len(files) >= MOST_FILES:
            paths = [f"{folder}/{FOLDER}/{file}" for file in files]
            try:
                whole = pa.concat_tables([storage.read_table(path) for path in paths]).sort_by("input")
            except FileNotFoundError:  # another worker was first
                continue
            _write(storage, f"{folder}/{FOLDER}/{digest(files)}.parquet", whole)
            for path in paths:
                storage.remove(path)
