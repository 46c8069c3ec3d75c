"""One shard's rows as a stage sees them: the pool's table, the facts of upstream stages, and who is still alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core import facts
from curate.core.errors import CorruptError
from curate.core.masks import ABSENT, Fate, fate_of, without_items
from curate.core.nouns import POOL_SCHEMA, Lines, Shard, read_lines, read_pool, read_selected, reading, selection_places
from curate.core.store.storage import Storage, open_storage

POOL_COLUMNS = tuple(name for name in POOL_SCHEMA.names if name != "reject")


@dataclass(frozen=True)
class ColumnsRef:
    """Where an upstream Map's facts lie (`path`), which tables of them count (`base`, their manifest; "" while they are
    being made), and their names."""

    stage: str
    path: str
    base: str = field(compare=False)
    names: tuple[str, ...]


@dataclass(frozen=True)
class MaskRef:
    """A point of the masks of a pass: `chain` is their folder, `base` a manifest ("" while they are being made)."""

    chain: str
    point: str
    base: str = field(default="", compare=False)


@dataclass
class Known:
    """What is known of some shards without their manifests. A task carries it for its own shards, so that no worker
    reads a list that grows with the pool; `curate plan` also keeps here what no file has."""

    numbers: dict[str, dict[str, int]] = field(default_factory=dict)
    """Folder of facts -> shard -> number of its table (0: it has none, and no row that needs one)."""
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """Folder of masks -> shard -> its file."""
    lines: dict[str, dict[str, Lines]] = field(default_factory=dict)
    """Base of a selection -> shard -> where its lines are."""
    fates: dict[tuple[str, str, str], Fate] = field(default_factory=dict)
    """(folder of masks, point, shard) -> what became of the shard's rows. In a plan."""
    tables: dict[tuple[str, str], pa.Table] = field(default_factory=dict)
    """(folder of facts, shard) -> its table with the answers that a run would copy into it. In a plan."""
    pool_columns: tuple[str, ...] = ()
    """What a task will read of its shards' tables of the pool: each is then read once."""
    pools: dict[str, pa.Table] = field(default_factory=dict)
    """Shard -> those columns."""
    plan: bool = False
    """Nothing is stored: a shard without a table needs none yet."""


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
    known: Known = field(default_factory=Known, hash=False, compare=False)
    """Looked into before manifests."""

    def knowing(self, known: Known) -> Rows:
        """The same rows, of shards that `known` has."""
        return replace(self, known=known, parents=None if self.parents is None else self.parents.knowing(known))

    def table(self, shard: Shard, names: tuple[str, ...]) -> pa.Table:
        """All rows of the shard, alive or not: `key` and the named columns; null where a stage has no row."""
        wanted = tuple(dict.fromkeys(("key", *names)))
        own = [name for name in wanted if name in POOL_COLUMNS and not self._maker(name)]
        table = self._pool(shard, own)
        for ref in self.columns:
            theirs = [name for name in ref.names if name in wanted]
            if theirs:
                found = self.facts(ref, shard, theirs)
                for name in theirs:
                    table = table.append_column(found.schema.field(name), found.column(name))
        return table.select(list(wanted))

    def _pool(self, shard: Shard, names: list[str]) -> pa.Table:
        """Columns of the shard's table of the pool."""
        known = self.known
        if known.pool_columns and shard.id not in known.pools:
            every = list(dict.fromkeys((*known.pool_columns, *names)))
            known.pools[shard.id] = read_pool(self.storage, shard.table, every)
        held = known.pools.get(shard.id)
        if held is None or not set(names).issubset(held.column_names):
            return read_pool(self.storage, shard.table, names)
        return held.select(names)

    def facts(self, ref: ColumnsRef, shard: Shard, names: list[str]) -> pa.Table:
        """Columns of one upstream stage, a row for each of the shard. CorruptError where its table cannot be read."""
        table = self._table_of(ref, shard, [facts.ROW, *names])
        if table is not None:
            return facts.expanded(table, shard.rows, names)
        if self.known.plan:  # no row needs them, or a run would have made a table
            return pa.table({name: pa.nulls(shard.rows) for name in names})
        raise CorruptError(
            f"{self.storage.url_of(ref.path)}: no facts of {ref.stage!r} for shard {shard.id}; run the recipe again"
        )

    def _table_of(self, ref: ColumnsRef, shard: Shard, names: list[str]) -> pa.Table | None:
        """Columns of an upstream stage's table of facts; None where the shard has none."""
        if (ref.path, shard.id) in self.known.tables:
            return self.known.tables[ref.path, shard.id].select(names)
        held = self.known.numbers.get(ref.path)
        number = (numbers(self.storage.url, ref.base) if held is None else held).get(shard.id, 0)
        return facts.read(self.storage, ref.path, shard.id, number, names) if number else None

    def marks(self, ref: ColumnsRef, shard: Shard) -> NDArray[np.bool_]:
        """Rows (n,) whose facts are an error's null, or computed from one."""
        marked = np.zeros(shard.rows, dtype=bool)
        table = self._table_of(ref, shard, [facts.ROW, facts.STATUS_COLUMN, facts.MARKED])
        if table is not None:
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

    def lines(self, shard: Shard, columns: list[str] | None = None) -> pa.Table:
        """Lines of the selection about one shard."""
        base = self.selection or ""
        held = self.known.lines.get(base)
        place = (selection_places(self.storage.url, base) if held is None else held).get(shard.id)
        return read_selected(self.storage, base, place, columns)

    def _selected(self, shard: Shard) -> Fate:
        """What a selection has left of the shard's rows, and of their items."""
        lines = self.lines(shard, ["row", "item", "copies", "reject"])
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
        table = self._pool(shard, names)
        rejects = table.column("reject").to_numpy(zero_copy_only=False)
        left = np.flatnonzero([reason is not None for reason in rejects])
        stage = self.order.get(self.source, 0)
        fate.leave(left, stage, rejects[left])
        if self.parents is not None and shard.parent:
            there = self.parents.alive(shard.parent_shard())[table.column("parent_row").to_numpy()]
            gone = np.flatnonzero(fate.alive & ~there)
            fate.leave(gone, stage, [ABSENT] * len(gone))

    def _mask(self, ref: MaskRef, shard: Shard) -> Fate:
        if (ref.chain, ref.point, shard.id) in self.known.fates:
            return self.known.fates[ref.chain, ref.point, shard.id]
        held = self.known.files.get(ref.chain)
        file = (mask_files(self.storage.url, ref.base) if held is None else held).get(shard.id)
        if file is None:
            raise CorruptError(
                f"{self.storage.url_of(ref.chain)}: this mask is corrupt or missing (no shard {shard.id}); remove the "
                f"folder {ref.chain} and run the recipe again"
            )
        return read_fates(self.storage, file, (ref.point,), self.order)[ref.point]

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
    table = read_lines(open_storage(url), base, ["id", "number"])
    return dict(zip(table.column("id").to_pylist(), table.column("number").to_pylist(), strict=True))


@lru_cache(maxsize=64)
def mask_files(url: str, base: str) -> dict[str, str]:
    """Shard -> its file of a mask."""
    table = read_lines(open_storage(url), base, ["id", "file"])
    return dict(zip(table.column("id").to_pylist(), table.column("file").to_pylist(), strict=True))


def read_fates(
    storage: Storage, file: str, points: Sequence[str], order: Mapping[str, int], row: int | None = None
) -> dict[str, Fate]:
    """Point -> what became of a shard's rows, or of one `row`, out of its file of a mask."""
    remedy = f"remove the folder {file.rpartition('/')[0]} and run the recipe again"
    with reading(storage, file, "mask", remedy):
        table = storage.read_table(file)
        table = table if row is None else table.slice(row, 1)
        return {point: fate_of(table, point, order) for point in points}
