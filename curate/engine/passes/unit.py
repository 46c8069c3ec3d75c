"""A few shards as one stretch of rows: what a pass goes over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.masks import Fate, concatenated
from curate.core.nouns import Shard
from curate.core.rows import Known, Rows
from curate.core.store.storage import Storage


class Unit:
    """A few shards as one stretch of rows; tables of the pool and of stages outside of the pass, each read once."""

    def __init__(self, storage: Storage, shards: Sequence[Shard], known: Known) -> None:
        self.storage, self.shards, self._known = storage, shards, known
        self.edges = np.concatenate([[0], np.cumsum([shard.rows for shard in shards])]).astype(np.int64)
        self.rows = int(self.edges[-1])
        self._fates: dict[Any, Fate] = {}
        self._columns: dict[tuple[str, str], pa.Table] = {}

    def shards_of(self, rows: Sequence[int]) -> pa.DictionaryArray:
        """The id of each row's shard."""
        places = np.searchsorted(self.edges, np.asarray(rows, dtype=np.int64), side="right") - 1
        return pa.DictionaryArray.from_arrays(pa.array(places), [shard.id for shard in self.shards])

    def pool(self, names: Sequence[str]) -> pa.Table:
        return self.columns(Rows(self.storage, known=self._known), names)

    def columns(self, rows: Rows, names: Sequence[str]) -> pa.Table:
        """Named columns of all rows."""
        makers = {name: next((ref.path for ref in rows.columns if name in ref.names), "") for name in names}
        lacking = [place for place in makers.items() if place not in self._columns]
        own = tuple(name for name, path in lacking if not path)
        if own:
            self._keep("", [rows.table(shard, own) for shard in self.shards])
        for ref in rows.columns:
            theirs = [name for name, path in lacking if path == ref.path]
            if theirs:
                self._keep(ref.path, [rows.facts(ref, shard, theirs) for shard in self.shards])
        found = [self._columns[place] for place in makers.items()]
        fields = [table.schema.field(0) for table in found]
        return pa.table([table.column(0) for table in found], schema=pa.schema(fields))

    def _keep(self, path: str, tables: list[pa.Table]) -> None:
        whole = pa.concat_tables(tables).combine_chunks()
        self._columns |= {(name, path): whole.select([name]) for name in whole.column_names}

    def fate(self, rows: Rows) -> Fate:
        """What became of all rows on the ways from outside."""
        ways = (rows.masks, rows.selection, rows.parents is None)
        if ways not in self._fates:
            self._fates[ways] = concatenated([rows.fate(shard) for shard in self.shards])
        return self._fates[ways]

    def marks(self, rows: Rows, name: str) -> NDArray[np.bool_]:
        ref = next((ref for ref in rows.columns if name in ref.names), None)
        if ref is None:
            return np.zeros(self.rows, dtype=bool)
        return np.concatenate([rows.marks(ref, shard) for shard in self.shards])
