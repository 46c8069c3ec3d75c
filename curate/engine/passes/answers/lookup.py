"""Results of costly stages, found by a digest of their inputs: an image is embedded once, in any shard, pool or run
that has it.

`<stage>` in the path of facts is the stage's fingerprint without the columns that it reads. A changed rule upstream
changes the fingerprint, but rows whose values it did not change keep their inputs. A look-up searches the shard's own
tables under a few other fingerprints, then the index over all shards (`index.py`) as listed when the pass began, and
what this process has added to it since.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.core.errors import CorruptError
from curate.core.nouns import facts
from curate.core.store.storage import Storage
from curate.engine.passes.answers import index

IMPORTED = "imported"
"""In place of a fingerprint: tables of imported answers, which belong to no run."""
OTHERS = 4
"""Other fingerprints of a stage whose tables of the same shard are searched."""
MOST_TABLES = 16
"""Tables with answers that one stage of a unit keeps in memory."""
LOOKS = 100
"""How often a look-up lists an index again because its files were merged meanwhile."""
Answer = tuple[pa.Table, int]  # a table of facts, and a row of it
Final = tuple[pa.Table, dict[bytes, int]]  # a table of facts, and input -> row of its answers


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
        files: index.Files,
    ) -> None:
        """`own`: shard -> (folder of another fingerprint, number of its table). `files`: of the index."""
        self.storage, self.folder, self.own, self.files = storage, folder, own, files
        self._tables: OrderedDict[tuple[str, str], tuple[int, Final | None]] = OrderedDict()
        """(path, shard) -> the number that was read, and what it has."""

    def find(self, wanted: Mapping[bytes, str]) -> dict[bytes, Answer]:
        """Input -> answer, for inputs of `wanted` (input -> its shard) that have one. Only final rows are answers."""
        found: dict[bytes, Answer] = {}
        for shard in dict.fromkeys(wanted.values()):
            for path, number in self.own.get(shard, ()):
                found |= self._among(path, shard, number, [given for given, of in wanted.items() if of == shard])
        for search in (index.search_recent, self._search_index):
            missing = [given for given in wanted if given not in found]
            by_table: dict[str, list[bytes]] = {}
            for given, table in search(self.storage, self.folder, missing) if missing else ():
                by_table.setdefault(table, []).append(given)
            for table, inputs in by_table.items():
                fingerprint, shard, name = table.split("/")
                place = (f"{self.folder}/{fingerprint}", shard, int(name.removesuffix(".parquet")))
                found |= self._among(*place, [given for given in inputs if given not in found])
        return found

    def _search_index(self, storage: Storage, folder: str, missing: list[bytes]) -> list[tuple[bytes, str]]:
        """Search the index; list it again if its files were merged meanwhile."""
        for _ in range(LOOKS if self.files else 0):
            try:
                return index.search(storage, folder, self.files, missing)
            except FileNotFoundError:
                self.files = index.files_of(storage.list(f"{folder}/{index.FOLDER}"))
        return []

    def _among(self, path: str, shard: str, number: int, wanted: Sequence[bytes]) -> dict[bytes, Answer]:
        """Answers to some inputs in one table, or in the shard's highest table if gc has removed that one."""
        final = self._final(path, shard, number) if wanted else None
        return {} if final is None else {given: (final[0], final[1][given]) for given in wanted if given in final[1]}

    def _final(self, path: str, shard: str, number: int) -> Final | None:
        """A table, or a higher one that is kept, which has all its rows. The last MOST_TABLES tables are kept."""
        read, final = self._tables.pop((path, shard), (0, None))
        if read < number:
            read, final = number, self._with_answers(path, shard, number)
        self._tables[path, shard] = read, final
        while len(self._tables) > MOST_TABLES:
            self._tables.popitem(last=False)
        return final

    def _with_answers(self, path: str, shard: str, number: int) -> Final | None:
        table = self._read(path, shard, number)
        if table is None:
            return None
        inputs = table.column(facts.INPUT).to_pylist()
        return table, {inputs[row]: int(row) for row in np.flatnonzero(facts.rank(table) == 2)}

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
