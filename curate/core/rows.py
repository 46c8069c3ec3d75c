"""One shard's rows as a stage sees them: the pool's table, the facts of upstream stages, and who is still alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core import facts
from curate.core.errors import CorruptError, StorageError
from curate.core.masks import ABSENT, Fate, fate_of, without_items
from curate.core.nouns import POOL_SCHEMA, Shard
from curate.core.storage import Storage, open_storage

POOL_COLUMNS = tuple(name for name in POOL_SCHEMA.names if name != "reject")


@dataclass(frozen=True)
class ColumnsRef:
    """Where an upstream Map's facts lie, which tables of them count (`base`, their manifest), and their names."""

    stage: str
    path: str
    base: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class MaskRef:
    """A point of a mask: `base` is the mask's manifest."""

    base: str
    point: str


@dataclass(frozen=True)
class Rows:
    """The rows that reach a stage through `from`. Picklable; reads one shard at a time."""

    storage: Storage
    columns: tuple[ColumnsRef, ...] = ()
    masks: tuple[MaskRef, ...] = ()
    """Points that must all let a row through. Without any, all rows that the pool itself has not rejected are alive."""
    selection: str | None = None
    """Base of a committed selection: only rows that it keeps are alive."""
    selected_by: str = ""
    """The stage that made it."""
    selected_items: str = ""
    """Family of the items that it chose among; "" where it chose rows."""
    source: str = ""
    """The stage that made the pool."""
    families: tuple[tuple[str, str], ...] = ()
    """Per-item column -> the family that its items are of."""
    order: Mapping[str, int] = field(default_factory=dict, hash=False, compare=False)
    """Stage -> place in the DAG."""
    parents: Rows | None = None
    """For a derived pool: the parents' rows. A child whose parent is not alive is absent."""

    def table(self, shard: Shard, names: tuple[str, ...]) -> pa.Table:
        """All rows of the shard, alive or not: `key` and the named columns; null where a stage has no row."""
        wanted = tuple(dict.fromkeys(("key", *names)))
        own = [name for name in wanted if name in POOL_COLUMNS and not self._maker(name)]
        table = self.storage.read_table(shard.table, columns=own)
        for ref in self.columns:
            theirs = [name for name in ref.names if name in wanted]
            if theirs:
                found = self.facts(ref, shard, theirs)
                for name in theirs:
                    table = table.append_column(found.schema.field(name), found.column(name))
        return table.select(list(wanted))

    def facts(self, ref: ColumnsRef, shard: Shard, names: list[str]) -> pa.Table:
        """Columns of one upstream stage, a row for each of the shard. CorruptError where its table cannot be read."""
        number = numbers(self.storage.url, ref.base).get(shard.id, 0)
        if not number:
            raise CorruptError(
                f"{self.storage.url_of(ref.path)}: no facts of {ref.stage!r} for shard {shard.id}; run the recipe again"
            )
        table = facts.read(self.storage, ref.path, shard.id, number, [facts.ROW, *names])
        return facts.expanded(table, shard.rows, names)

    def marks(self, ref: ColumnsRef, shard: Shard) -> NDArray[np.bool_]:
        """Rows (n,) whose facts are an error's null, or computed from one."""
        number = numbers(self.storage.url, ref.base).get(shard.id, 0)
        marked = np.zeros(shard.rows, dtype=bool)
        if number:
            names = [facts.ROW, facts.STATUS_COLUMN, facts.MARKED]
            table = facts.read(self.storage, ref.path, shard.id, number, names)
            marked[table.column(facts.ROW).to_numpy()] = facts.rank(table) < 2
        return marked

    def fate(self, shard: Shard) -> Fate:
        """What became of every row on the way here."""
        found = Fate.all_alive(shard.rows)
        if not self.masks and self.selection is None:
            self._pool_fate(shard, found)
        for ref in self.masks:
            found = found.also(self._mask(ref, shard))
        if self.selection is not None:
            found = found.also(self._selected(shard))
        return found

    def alive(self, shard: Shard) -> NDArray[np.bool_]:
        return self.fate(shard).alive

    def _selected(self, shard: Shard) -> Fate:
        """What a selection has left of the shard's rows, and of their items."""
        lines = selection_lines(self.storage, self.selection or "", shard)
        rows, copies = lines.column("row").to_numpy(), lines.column("copies").to_numpy()
        chosen = np.zeros(shard.rows, dtype=bool)
        chosen[rows[copies > 0]] = True
        fate, left = Fate.all_alive(shard.rows), np.flatnonzero(~chosen)
        fate.leave(left, self.order.get(self.selected_by, 0), ["not_selected"] * len(left))
        if self.selected_items:
            lists: dict[int, list[str | None]] = {}
            for line in lines.to_pylist():
                found, item = lists.setdefault(line["row"], []), int(line["item"])
                found += [None] * (item + 1 - len(found))
                found[item] = None if line["copies"] else line["reject"]
            fate.reject_items(self.selected_items, np.array(list(lists), dtype=np.int64), list(lists.values()))
        return fate

    def _pool_fate(self, shard: Shard, fate: Fate) -> None:
        names = ["reject"] + (["parent_row"] if self.parents is not None else [])
        try:
            table = self.storage.read_table(shard.table, columns=names)
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            place, text = self.storage.url_of(shard.table), " ".join(str(error).split())[:200]
            raise StorageError(f"{place}: this table of a pool is corrupt or missing ({text}); restore it") from error
        rejects = table.column("reject").to_numpy(zero_copy_only=False)
        left = np.flatnonzero([reason is not None for reason in rejects])
        stage = self.order.get(self.source, 0)
        fate.leave(left, stage, rejects[left])
        if self.parents is not None and shard.parent:
            there = self.parents.alive(shard.parent_shard())[table.column("parent_row").to_numpy()]
            gone = np.flatnonzero(fate.alive & ~there)
            fate.leave(gone, stage, [ABSENT] * len(gone))

    def _mask(self, ref: MaskRef, shard: Shard) -> Fate:
        file = mask_files(self.storage.url, ref.base).get(shard.id)
        if file is None:
            raise CorruptError(
                f"{self.storage.url_of(ref.base)}: this mask has no shard {shard.id}; run the recipe again"
            )
        try:
            table = self.storage.read_table(file)
            return fate_of(table, ref.point, self.order)
        except (FileNotFoundError, pa.ArrowInvalid, KeyError) as error:
            text = " ".join(str(error).split())[:200]
            raise CorruptError(
                f"{self.storage.url_of(file)}: this mask is corrupt or missing ({text}); remove the folder "
                f"{file.split('/versions/')[0].rpartition('/')[0]} and run the recipe again"
            ) from error

    def live_table(self, shard: Shard, names: tuple[str, ...]) -> pa.Table:
        """Alive rows only, rejected items null; the schema's metadata says of which `shard` they are."""
        fate = self.fate(shard)
        table = self.without_items(self.table(shard, names), fate).filter(pa.array(fate.alive))
        return table.replace_schema_metadata({**(table.schema.metadata or {}), b"shard": shard.id.encode()})

    def without_items(self, table: pa.Table, fate: Fate) -> pa.Table:
        """Rejected items as nulls, in all columns of their families."""
        for column, family in self.families:
            if family in fate.items and column in table.column_names:
                place = table.schema.get_field_index(column)
                table = table.set_column(
                    place, table.schema.field(place), without_items(table.column(place), fate.items[family])
                )
        return table

    def _maker(self, name: str) -> str | None:
        return next((ref.stage for ref in self.columns if name in ref.names), None)


@lru_cache(maxsize=64)
def numbers(url: str, base: str) -> dict[str, int]:
    """Shard -> number of the table that a facts manifest names."""
    table = _lines(url, base, ["id", "number"])
    return dict(zip(table.column("id").to_pylist(), table.column("number").to_pylist(), strict=True))


@lru_cache(maxsize=64)
def mask_files(url: str, base: str) -> dict[str, str]:
    """Shard -> its file of a mask."""
    table = _lines(url, base, ["id", "file"])
    return dict(zip(table.column("id").to_pylist(), table.column("file").to_pylist(), strict=True))


def _lines(url: str, base: str, columns: list[str]) -> pa.Table:
    storage = open_storage(url)
    try:
        return storage.read_table(f"{base}/shards.parquet", columns=columns)
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        text = " ".join(str(error).split())[:200]
        raise CorruptError(
            f"{storage.url_of(base)}: its list of shards is corrupt or missing ({text}); remove this folder and run "
            "the recipe again"
        ) from error


def selection_lines(storage: Storage, base: str, shard: Shard) -> pa.Table:
    """Lines of a selection about one shard: row, item, copies, reject."""
    columns = ["row", "item", "copies", "reject"]
    mine = pc.field("shard") == shard.id
    files = sorted(storage.list(f"{base}/buckets"))
    return pa.concat_tables(
        [storage.read_table(f"{base}/buckets/{file}", columns=columns, filters=mine) for file in files]
    )
