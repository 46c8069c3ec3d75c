"""One shard's rows as a stage sees them: the pool's table, the columns of upstream stages, and who is still alive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.errors import StorageError
from curate.core.nouns import POOL_SCHEMA, Shard
from curate.core.storage import Storage

POOL_COLUMNS = tuple(name for name in POOL_SCHEMA.names if name != "reject")


@dataclass(frozen=True)
class ColumnsRef:
    """Where an upstream Map's columns lie, and what they are called."""

    stage: str
    path: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """The rows that reach a stage through `from`. Picklable; reads one shard at a time."""

    storage: Storage
    columns: tuple[ColumnsRef, ...] = ()
    selection: str | None = None
    """Base of a committed selection: only rows it keeps are alive."""

    def table(self, shard: Shard, names: tuple[str, ...]) -> pa.Table:
        """All rows of the shard, alive or not: `key` and the named columns."""
        wanted = tuple(dict.fromkeys(("key", *names)))
        own = [name for name in wanted if name in POOL_COLUMNS and not self._maker(name)]
        table = self.storage.read_table(shard.table, columns=own)
        for ref in self.columns:
            theirs = [name for name in ref.names if name in wanted]
            if theirs:
                part = self._columns(ref, shard, theirs)
                for name in theirs:
                    table = table.append_column(part.schema.field(name), part.column(name))
        return table.select(list(wanted))

    def _columns(self, ref: ColumnsRef, shard: Shard, names: list[str]) -> pa.Table:
        """Columns of one upstream stage. StorageError where a shard lacks its file or one of them."""
        path = f"{ref.path}/{shard.id}.parquet"
        try:
            table = self.storage.read_table(path, columns=names)
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise self._lacking(path, ref.stage, error) from error
        if set(table.column_names) != set(names):
            raise self._lacking(path, ref.stage, f"columns {', '.join(table.column_names) or 'none'}")
        return table

    def _lacking(self, path: str, stage: str, why: object) -> StorageError:
        text = " ".join(str(why).split())[:200]
        return StorageError(
            f"{self.storage.url_of(path)}: no columns of {stage!r} can be read there ({text}); "
            f"remove the folder {path.rpartition('/')[0]} and run the recipe again"
        )

    def alive(self, shard: Shard) -> NDArray[np.bool_]:
        alive = rejects_to_mask(self.storage.read_table(shard.table, columns=["reject"]))
        for ref in self.columns:
            alive &= rejects_to_mask(self._columns(ref, shard, ["reject"]))
        if self.selection is not None:
            alive &= selected_mask(self.storage, self.selection, shard)
        return alive

    def live_table(self, shard: Shard, names: tuple[str, ...]) -> pa.Table:
        """Live rows only; the schema's metadata says of which `shard` they are."""
        table = self.table(shard, names).filter(pa.array(self.alive(shard)))
        return table.replace_schema_metadata({**(table.schema.metadata or {}), b"shard": shard.id.encode()})

    def _maker(self, name: str) -> str | None:
        return next((ref.stage for ref in self.columns if name in ref.names), None)


def rejects_to_mask(table: pa.Table) -> NDArray[np.bool_]:
    """True where `reject` is null."""
    return pc.is_null(table.column("reject")).to_numpy(zero_copy_only=False).copy()


def selected_mask(storage: Storage, base: str, shard: Shard) -> NDArray[np.bool_]:
    mask = np.zeros(shard.rows, dtype=bool)
    for file in sorted(storage.list(f"{base}/buckets")):
        table = storage.read_table(
            f"{base}/buckets/{file}",
            columns=["row"],
            filters=(pc.field("shard") == shard.id) & (pc.field("copies") > 0),
        )
        mask[table.column("row").to_numpy()] = True
    return mask
