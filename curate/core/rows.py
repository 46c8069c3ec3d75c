"""The rows of a shard as a stage reads them: the pool's table, facts of upstream stages, and which rows are alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.errors import CorruptError
from curate.core.nouns import facts
from curate.core.nouns.manifest import read_lines, reading
from curate.core.nouns.masks import ABSENT, Fate, fate_of, without_items
from curate.core.nouns.pools import MEDIA_COLUMNS, POOL_SCHEMA, Shard, read_pool
from curate.core.nouns.selections import Lines, read_selected, selection_places
from curate.core.store.storage import Storage, open_storage

PARENT = "parent."
"""Prefix of the name of a parent's column, where the rows are children."""
CHILDREN = "children"
"""Port of a stage that reads columns of its rows' children, as `children.` and a name: lists of the alive ones."""
POOL_COLUMNS = tuple(name for name in POOL_SCHEMA.names if name not in ("reject", "status"))
IMAGE_COLUMNS = tuple(name for name in POOL_COLUMNS if name not in MEDIA_COLUMNS)
"""Columns of a pool of images, over which the names of MEDIA_COLUMNS are free for the columns of a Map."""


@dataclass(frozen=True)
class ColumnsRef:
    """Facts of an upstream Map: their folder (`path`), the manifest of the tables to read (`base`; "" while they are
    being built), and the names of the columns."""

    stage: str
    path: str
    base: str = field(compare=False)
    names: tuple[str, ...]


@dataclass(frozen=True)
class MaskRef:
    """A point of the masks of a pass: `chain` is their folder, `base` a manifest ("" while they are being built)."""

    chain: str
    point: str
    base: str = field(default="", compare=False)


@dataclass
class KnownShards:
    """Tables and masks of some shards, so that manifests need not be read. A task carries this for its own shards, so
    that workers never read a list that grows with the pool. `curate plan` also keeps unsaved results here."""

    numbers: dict[str, dict[str, int]] = field(default_factory=dict)
    """Folder of facts -> shard -> number of its table (0: no table, because no row needs one)."""
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """Folder of masks -> shard -> its file."""
    lines: dict[str, dict[str, Lines]] = field(default_factory=dict)
    """Base of a selection -> shard -> location of its lines."""
    fates: dict[tuple[str, str, str], Fate] = field(default_factory=dict)
    """(folder of masks, point, shard) -> fate of the shard's rows. Only in a plan."""
    children: dict[str, dict[str, tuple[Shard, ...]]] = field(default_factory=dict)
    """Stage that made a derived pool -> parents' shard -> shards of their children."""
    tables: dict[tuple[str, str], pa.Table] = field(default_factory=dict)
    """(folder of facts, shard) -> its table with the answers that a run would copy into it. Only in a plan."""
    pool_columns: tuple[str, ...] = ()
    """All columns that a task reads of a shard's pool table, so that it reads the table once."""
    pools: dict[str, pa.Table] = field(default_factory=dict)
    """Shard -> those columns."""
    plan: bool = False
    """Nothing is stored, so a shard may lack a table."""


@dataclass(frozen=True)
class Rows:
    """The rows that reach a stage through `from`. Picklable; reads one shard at a time."""

    storage: Storage
    columns: tuple[ColumnsRef, ...] = ()
    masks: tuple[MaskRef, ...] = ()
    """A row must be alive at all these points. If empty, rows that the pool has not rejected are alive."""
    selection: str | None = None
    """Base of a committed selection: only selected rows are alive."""
    selected_by: str = ""
    """The stage that made it."""
    selected_items: str = ""
    """Family of the items that were selected; "" if rows were selected."""
    source: str = ""
    """The stage that made the pool."""
    families: tuple[tuple[str, str], ...] = ()
    """Per-item column -> family of its items."""
    order: Mapping[str, int] = field(default_factory=dict, hash=False, compare=False)
    """Stage -> index in the DAG."""
    parents: Rows | None = None
    """For a derived pool: the parents' rows. Children of rejected parents are absent."""
    children: Rows | None = None
    """For a stage that reads columns of children: their rows, as the stage at its port leaves them."""
    known: KnownShards = field(default_factory=KnownShards, hash=False, compare=False)
    """Consulted before manifests."""

    def with_known(self, known: KnownShards) -> Rows:
        """The same rows, for the shards in `known`."""
        parents, children = (near and near.with_known(known) for near in (self.parents, self.children))
        return replace(self, known=known, parents=parents, children=children)

    def table(self, shard: Shard, names: tuple[str, ...]) -> pa.Table:
        """All rows of the shard, alive or not: `key` and the named columns; null if a stage has no row."""
        columns, above = tuple(dict.fromkeys(("key", *names))), of_parent(names)
        own = [name for name in columns if name in POOL_COLUMNS and not self._maker(name)]
        table = self._pool(shard, own)
        for ref in self.columns:
            written = [name for name in ref.names if name in columns]
            if written:
                found = self.facts(ref, shard, written)
                for name in written:
                    table = table.append_column(found.schema.field(name), found.column(name))
        if above:
            assert self.parents is not None
            found = self.parents.table(shard.parent_shard(), above).take(self._parent_rows(shard))
            for name in above:
                table = table.append_column(PARENT + name, found.column(name))
        for name in columns:
            if name.startswith(f"{CHILDREN}."):
                table = table.append_column(name, self._of_children(shard, name.removeprefix(f"{CHILDREN}.")))
        return table.select(list(columns))

    def _of_children(self, shard: Shard, name: str) -> pa.Array:
        """Each row's list of the values of its alive children, in order; null for all rows if no row has a child."""
        assert self.children is not None
        names = tuple(dict.fromkeys(("parent_row", name)))
        shards = self.known.children.get(self.children.source, {}).get(shard.id, ())
        found = [self.children.live_table(child, names) for child in shards]
        if not sum(table.num_rows for table in found):
            return pa.nulls(shard.rows)
        table = pa.concat_tables([table.select(names).replace_schema_metadata() for table in found])
        parents = table.column("parent_row").to_numpy()  # all children of a parent are in one shard, in order
        values = table.column(name).take(pa.array(np.argsort(parents, kind="stable"))).combine_chunks()
        offsets = np.concatenate([[0], np.cumsum(np.bincount(parents, minlength=shard.rows))])
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)

    def _parent_rows(self, shard: Shard) -> NDArray[np.int32]:
        """Row of each child's parent in the parents' shard."""
        return np.asarray(self._pool(shard, ["parent_row"]).column("parent_row"))

    def _pool(self, shard: Shard, names: list[str]) -> pa.Table:
        """Columns of the shard's pool table."""
        known = self.known
        if known.pool_columns and shard.id not in known.pools:
            every = list(dict.fromkeys((*known.pool_columns, *names)))
            known.pools[shard.id] = read_pool(self.storage, shard.table, every)
        held = known.pools.get(shard.id)
        if held is None or not set(names).issubset(held.column_names):
            return read_pool(self.storage, shard.table, names)
        return held.select(names)

    def facts(self, ref: ColumnsRef, shard: Shard, names: list[str]) -> pa.Table:
        """Columns of one upstream stage, for all rows of the shard. CorruptError if its table cannot be read."""
        table = self._table_of(ref, shard, [facts.ROW, *names])
        if table is not None:
            return facts.expanded(table, shard.rows, names)
        if self.known.plan:  # no row needs them; otherwise a run would have built a table
            return pa.table({name: pa.nulls(shard.rows) for name in names})
        raise CorruptError(
            f"{self.storage.url_of(ref.path)}: no facts of {ref.stage!r} for shard {shard.id}; rerun the recipe"
        )

    def _table_of(self, ref: ColumnsRef, shard: Shard, names: list[str]) -> pa.Table | None:
        """Columns of an upstream stage's table of facts; None if the shard has no table."""
        if (ref.path, shard.id) in self.known.tables:
            return self.known.tables[ref.path, shard.id].select(names)
        held = self.known.numbers.get(ref.path)
        number = (numbers(self.storage.url, ref.base) if held is None else held).get(shard.id, 0)
        return facts.read(self.storage, ref.path, shard.id, number, names) if number else None

    def marks(self, ref: ColumnsRef, shard: Shard) -> NDArray[np.bool_]:
        """Rows (n,) whose facts are the null of an error, or computed from one."""
        marked = np.zeros(shard.rows, dtype=bool)
        table = self._table_of(ref, shard, [facts.ROW, facts.STATUS_COLUMN, facts.MARKED])
        if table is not None:
            marked[table.column(facts.ROW).to_numpy()] = facts.rank(table) < 2
        return marked

    def marked(self, shard: Shard, names: Sequence[str]) -> NDArray[np.bool_]:
        """Rows (n,) for which one of the named columns is the null of an error, or computed from one."""
        refs = [ref for ref in self.columns if set(ref.names).intersection(names)]
        marks = [np.zeros(shard.rows, dtype=bool), *(self.marks(ref, shard) for ref in refs)]
        if self.parents is not None and (above := of_parent(names)):
            marks.append(self.parents.marked(shard.parent_shard(), above)[self._parent_rows(shard)])
        return np.any(marks, axis=0)

    def fate(self, shard: Shard) -> Fate:
        """The fate of every row."""
        found = Fate.all_alive(shard.rows)
        if not self.masks and self.selection is None:
            self._pool_fate(shard, found)
        for ref in self.masks:
            found = found.intersect(self._mask(ref, shard))
        if self.selection is not None:
            found = found.intersect(self._selected(shard))
        return found

    def alive(self, shard: Shard) -> NDArray[np.bool_]:
        return self.fate(shard).alive

    def lines(self, shard: Shard, columns: list[str] | None = None) -> pa.Table:
        """The shard's lines of the selection."""
        base = self.selection or ""
        held = self.known.lines.get(base)
        place = (selection_places(self.storage.url, base) if held is None else held).get(shard.id)
        return read_selected(self.storage, base, place, columns)

    def _selected(self, shard: Shard) -> Fate:
        """The fate of rows and items in the selection."""
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
            parent_alive = self.parents.alive(shard.parent_shard())[table.column("parent_row").to_numpy()]
            gone = np.flatnonzero(fate.alive & ~parent_alive)
            fate.leave(gone, stage, [ABSENT] * len(gone))

    def _mask(self, ref: MaskRef, shard: Shard) -> Fate:
        if (ref.chain, ref.point, shard.id) in self.known.fates:
            return self.known.fates[ref.chain, ref.point, shard.id]
        held = self.known.files.get(ref.chain)
        file = (mask_files(self.storage.url, ref.base) if held is None else held).get(shard.id)
        if file is None:
            raise CorruptError(
                f"{self.storage.url_of(ref.chain)}: this mask is corrupt or missing (no shard {shard.id}); remove the "
                f"folder {ref.chain} and rerun the recipe"
            )
        return read_fates(self.storage, file, (ref.point,), self.order)[ref.point]

    def live_table(self, shard: Shard, names: tuple[str, ...]) -> pa.Table:
        """Live rows only, with rejected items null. The schema's metadata has the id of the `shard`."""
        fate = self.fate(shard)
        table = self.without_items(self.table(shard, names), fate).filter(pa.array(fate.alive))
        return table.replace_schema_metadata({**(table.schema.metadata or {}), b"shard": shard.id.encode()})

    def without_items(self, table: pa.Table, fate: Fate) -> pa.Table:
        """The table with rejected items set to null in all columns of their families."""
        for column, family in self.families:
            if family in fate.items and column in table.column_names:
                place = table.schema.get_field_index(column)
                table = table.set_column(
                    place, table.schema.field(place), without_items(table.column(place), fate.items[family])
                )
        return table

    def _maker(self, name: str) -> str | None:
        return next((ref.stage for ref in self.columns if name in ref.names), None)


def of_parent(names: Iterable[str]) -> tuple[str, ...]:
    """The parent's columns among names of columns."""
    return tuple(dict.fromkeys(name.removeprefix(PARENT) for name in names if name.startswith(PARENT)))


@lru_cache(maxsize=64)
def numbers(url: str, base: str) -> dict[str, int]:
    """Shard -> number of its table in a manifest of facts."""
    table = read_lines(open_storage(url), base, ["id", "number"])
    return dict(zip(table.column("id").to_pylist(), table.column("number").to_pylist(), strict=True))


@lru_cache(maxsize=64)
def mask_files(url: str, base: str) -> dict[str, str]:
    """Shard -> its mask file."""
    table = read_lines(open_storage(url), base, ["id", "file"])
    return dict(zip(table.column("id").to_pylist(), table.column("file").to_pylist(), strict=True))


def read_fates(
    storage: Storage, file: str, points: Sequence[str], order: Mapping[str, int], row: int | None = None
) -> dict[str, Fate]:
    """Point -> fate of a shard's rows, or of one `row`, from its mask file."""
    remedy = f"remove the folder {file.rpartition('/')[0]} and rerun the recipe"
    with reading(storage, file, "mask", remedy):
        table = storage.read_table(file)
        table = table if row is None else table.slice(row, 1)
        return {point: fate_of(table, point, order) for point in points}
