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
    """What earlier runs and other shards have computed for one stage. `found` is by input."""

    def __init__(self, storage: Storage, folder: str, own: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        self.storage, self.folder, self.own = storage, folder, own
        """`own`: shard -> (folder of another fingerprint, number of its table)."""
        self._tables: dict[tuple[str, str, int], tuple[pa.Table, dict[bytes, int]]] = {}

    def find(self, wanted: Mapping[bytes, str]) -> dict[bytes, Answer]:
        """Input -> answer, for those of `wanted` (input -> its shard) that have one. Only final rows are answers."""
        found: dict[bytes, Answer] = {}
        for shard in dict.fromkeys(wanted.values()):
            for path, number in self.own.get(shard, ()):
                table, rows = self._final(path, shard, number)
                found.update({i: (table, rows[i]) for i, s in wanted.items() if s == shard and i in rows})
        missing = [given for given in wanted if given not in found]
        if missing:
            found.update(self._indexed(missing))
        return found

    def _final(self, path: str, shard: str, number: int) -> tuple[pa.Table, dict[bytes, int]]:
        """A table, and the rows of it that are answers, by input."""
        key = (path, shard, number)
        if key not in self._tables:
            table = facts.read(self.storage, path, shard, number)
            inputs = table.column(facts.INPUT).to_pylist()
            good = np.flatnonzero(facts.rank(table) == 2)
            self._tables[key] = table, {inputs[row]: int(row) for row in good}
        return self._tables[key]

    def _indexed(self, missing: list[bytes]) -> dict[bytes, Answer]:
        found: dict[bytes, Answer] = {}
        places = self._places(missing)
        for line in places.to_pylist():
            if line["input"] not in found:
                try:
                    table, rows = self._final(line["path"], line["shard"], line["number"])
                except CorruptError:  # gc has removed it since: it is computed again
                    continue
                if line["input"] in rows:
                    found[line["input"]] = table, rows[line["input"]]
        return found

    def _places(self, missing: list[bytes]) -> pa.Table:
        """Lines of the index for these inputs. Files that were joined meanwhile are looked for again."""
        wanted = pa.array(sorted(missing), pa.binary(16))
        for _ in range(3):
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
