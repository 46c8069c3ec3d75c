"""The rows that are alive at a stage of a run, with columns of any of its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.core.errors import CorruptError, InputError, did_you_mean
from curate.core.nouns import facts
from curate.core.nouns.manifest import Manifest, reading
from curate.core.nouns.masks import ALIVE, NO_ITEMS, NO_REASON, Reasons
from curate.core.nouns.pools import POOL_SCHEMA, Shard, read_pool, read_shards
from curate.core.nouns.takedowns import ERASED, erased_rows
from curate.core.recipe import registry
from curate.core.rows import IMAGE_COLUMNS, POOL_COLUMNS, ColumnsRef, KnownShards, Rows, mask_files, numbers, read_fates
from curate.engine.record.runs import RunRecord
from curate.kernels.meta import META, column_of

WITH_ROWS = ("pools/", "facts/", "masks/", "selections/")


class LiveRows:
    """Raises InputError for a stage that the run does not have or has not completed, and for one without rows."""

    def __init__(self, run: RunRecord, stage: str) -> None:
        self.run, self.stage, self.storage = run, stage, run.storage
        stages, self.outputs = run.record["stages"], run.outputs
        self.order = {name: place for place, name in enumerate(stages)}
        self.bases = {name: str(output["base"]) for name, output in self.outputs.items()}
        if not self.bases.get(stage, "").startswith(WITH_ROWS):
            known = [name for name, base in self.bases.items() if base.startswith(WITH_ROWS)]
            why = "has not completed this stage" if stage in stages else "has no such stage"
            why = f"{run.ops()[stage]} passes on no rows" if stage in self.bases else why
            raise InputError(f"{stage}: run {run.run_id}: {why}; {did_you_mean(stage, known, f'give one of {known}')}")
        pool = run.pool_of(stage)
        self.shards = read_shards(self.storage, self.bases[pool])
        self.path = [name for name in run.upstream(stage) if run.pool_of(name) == pool]
        names = POOL_COLUMNS if stages[pool].get("media") else IMAGE_COLUMNS
        self.fields = {name: POOL_SCHEMA.field(name) for name in names}
        """Column -> its field. If several stages write a column, the pool comes first, then one on the path."""
        self.places = {name: (pool, name) for name in names}
        """Column, or stage.column -> (stage, column)."""
        self.places |= {f"{pool}.{name}": (pool, name) for name in names}
        self.pool, self._kinds = pool, {(pool, name): field for name, field in self.fields.items()}
        refs = []
        for name in sorted(self.bases, key=lambda name: (name not in self.path, self.order[name])):
            if self.bases[name].startswith("facts/") and run.pool_of(name) == pool:
                written = {field.name: field for field in self._fields(name)}
                own = {column: field for column, field in written.items() if column not in self.fields}
                refs.append(ColumnsRef(name, self.outputs[name]["path"], self.bases[name], tuple(own)))
                self.fields |= own
                self.places |= {column: (name, column) for column in own}
                self.places |= {f"{name}.{column}": (name, column) for column in written}
                self._kinds |= {(name, column): field for column, field in written.items()}
        above = stages[pool]["from"] if stages[pool].get("derives") else ()
        parents: Rows | None = LiveRows(run, above[0]).rows if above else None
        held = KnownShards(plan=True)
        self.rows: Rows = Rows(self.storage, tuple(refs), order=self.order, parents=parents, known=held)
        masks = ((base, Manifest.load(self.storage, base)) for base in reversed(run.masks()))
        self._masks = [(base, manifest.extra["points"]) for base, manifest in masks if manifest is not None]
        """The last ones first: they know of the most stages. An erasure removes those that counted its rows."""
        self._erased = erased_rows(self.storage)

    def _fields(self, name: str) -> list[pa.Field]:
        """Columns of a Map, from the first of its tables that can be read."""
        lost: CorruptError | None = None
        for shard, number in numbers(self.storage.url, self.bases[name]).items():
            if number:
                path = facts.table_path(self.outputs[name]["path"], shard, number)
                remedy = "remove this folder and masks, and rerun the recipe"
                try:
                    with reading(self.storage, path, "table of facts", remedy), self.storage.open(path) as file:
                        return [field for field in pq.read_schema(file) if not field.name.startswith("_")]
                except CorruptError as error:
                    lost = error
        if lost is not None:
            raise lost
        return []

    def field(self, column: str) -> pa.Field:
        """The field of a column, of stage.column, or of meta.FIELD, which is text."""
        if column.startswith(META) and "meta" in self.places:
            self.places.setdefault(column, self.places["meta"])
        if column not in self.places:
            hint = did_you_mean(column, self.places, f"the columns are {', '.join(self.fields)}")
            raise InputError(f"{column}: no stage over the rows of {self.stage} writes this column; {hint}")
        return self._kinds[self.places[column]].with_name(column)

    def one_field(self, column: str) -> pa.Field:
        """As `field`; raises InputError for a column that several stages write and the pool does not have."""
        field, ways = self.field(column), self.ways(column)
        if len(ways) > 1:
            writers = " and ".join(way.removesuffix(f".{column}") for way in ways)
            raise InputError(f"{column}: {writers} write this column; give {' or '.join(ways)}")
        return field

    def ways(self, column: str) -> list[str]:
        """How to name a column: STAGE.COLUMN for each if several stages write it and the pool does not have it."""
        writers = [stage for stage, name in self._kinds if name == column]
        return [f"{stage}.{column}" for stage in writers] if len(writers) > 1 and writers[0] != self.pool else [column]

    def table(self, shard: Shard, columns: Sequence[str]) -> pa.Table:
        """Columns of the live rows of a shard; null where a stage has no result."""
        made, alive, _ = self.judged(shard, columns)
        return made if alive.all() else made.filter(pa.array(alive))

    def judged(self, shard: Shard, columns: Sequence[str]) -> tuple[pa.Table, NDArray[np.bool_], Reasons]:
        """Columns of all n rows of a shard, which of them (n,) are alive, and why this stage rejected those (n,) that
        reached it; null for all others."""
        made, held = self._read(shard, columns)
        return made, *self._fate(shard, held)

    def whole(self, shard: Shard, columns: Sequence[str]) -> pa.Table:
        """Columns of all rows of a shard, alive or not."""
        return self._read(shard, columns)[0]

    def _read(self, shard: Shard, columns: Sequence[str]) -> tuple[pa.Table, dict[str, pa.Table | None]]:
        """Columns of all rows, and the tables that they are from, by stage."""
        fields = [self.field(column) for column in columns]
        wanted: dict[str, list[str]] = {}
        for stage, name in dict.fromkeys(self.places[column] for column in columns):
            wanted.setdefault(stage, ["reject"] if stage == self.pool else []).append(name)
        held: dict[str, pa.Table | None] = {}
        whole: dict[str, pa.Table] = {}
        for name in wanted:
            if name == self.pool:
                held[name] = whole[name] = read_pool(self.storage, shard.table, wanted[name])
                continue
            held[name] = table = self._facts(name, shard, wanted[name])
            none = pa.table({column: pa.nulls(shard.rows) for column in wanted[name]})
            whole[name] = none if table is None else facts.expanded(table, shard.rows, wanted[name])
        arrays = [whole[stage].column(name) for stage, name in (self.places[column] for column in columns)]
        arrays = [column_of(a, name) if name.startswith(META) else a for a, name in zip(arrays, columns, strict=True)]
        made = pa.table(arrays, list(columns)).cast(pa.schema(fields))
        return made, held

    def _facts(self, name: str, shard: Shard, columns: Sequence[str] = ()) -> pa.Table | None:
        """Rows, status and columns of a Map for a shard; None if it has no table."""
        number = numbers(self.storage.url, self.bases[name]).get(shard.id, 0)
        names = [facts.ROW, facts.STATUS_COLUMN, facts.REASON, *columns]
        return facts.read(self.storage, self.outputs[name]["path"], shard.id, number, names) if number else None

    def _fate(self, shard: Shard, held: Mapping[str, pa.Table | None]) -> tuple[NDArray[np.bool_], Reasons]:
        """Which rows (n,) pass the stage, and why it rejected others. Masks have the first stage that rejected a row,
        which may be on a path that joins later; for such a row the later stages of this path decide. `held`: tables
        that were read."""
        alive, why = np.ones(shard.rows, bool), np.full(shard.rows, None, object)
        *before, last = [self.order[name] for name in self.path]
        chosen = [self.order[name] for name in self.path if self.bases[name].startswith("selections/")]
        passed = np.full(shard.rows, max(chosen, default=0))  # the stages of the path before this one
        open_ = alive.copy()
        for base, points in self._masks:
            file = mask_files(self.storage.url, base).get(shard.id)
            for point, fate in read_fates(self.storage, file, points, self.order).items() if file else ():
                alive &= ~np.isin(fate.stage, before)
                here = fate.stage == last
                why[here] = fate.reason[here]
                if any(self.stage in self.run.upstream(name) for name in point.split("+")):
                    passed = np.maximum(passed, np.where(fate.stage == ALIVE, last + 1, fate.stage))
            open_ = alive & (passed <= last)
            open_[open_] = why[open_] == NO_REASON
            if not open_.any():
                break
        if open_.any() or self.stage == self.pool:
            pool = held.get(self.pool)
            rejects = (read_pool(self.storage, shard.table, ["reject"]) if pool is None else pool).column("reject")
            alive &= rejects.is_null().to_numpy()
        for name in self.path:
            if name == self.stage:
                reached, alive = alive.copy(), alive & (why == NO_REASON)
            rows = np.flatnonzero(alive & (passed <= self.order[name]))
            found = self._rejected(name, shard, rows, held) if len(rows) else np.empty(0, object)
            alive[rows] = found == NO_REASON
            if name == self.stage:
                why[rows] = found
                why[~reached] = None
        if self.stage == self.pool:
            why = rejects.to_numpy(zero_copy_only=False).astype(object)
        erased = self._erased.get(shard.id, [])
        alive[erased], why[erased] = False, ERASED
        return alive, why

    def _rejected(
        self, name: str, shard: Shard, rows: NDArray[np.int64], held: Mapping[str, pa.Table | None]
    ) -> Reasons:
        """Why one stage rejects each of these rows (ascending); null for those that pass."""
        base, about = self.bases[name], self.run.record["stages"][name]
        if base.startswith("selections/"):
            chosen = Rows(self.storage, selection=base, selected_by=name)
            lines = chosen.lines(shard, ["row", "reject"])
            why = chosen.fate(shard).reason
            listed, first = np.unique(lines.column("row").to_numpy(), return_index=True)
            given = lines.column("reject").to_numpy(zero_copy_only=False)[first]
            why[listed] = np.where((why[listed] == NO_REASON) | (given == NO_REASON), why[listed], given)
            return why[rows]
        if base.startswith("masks/"):
            judge: Any = registry.resolve(about["op"])(**about["parameters"])
            reasons = pa.array(judge.keep(self.rows.table(shard, judge.reads()).take(pa.array(rows)))).to_pylist()
            if judge.places() is not None:  # a row without items left is rejected
                reasons = [None if None in (items or ()) else NO_ITEMS for items in reasons]
            return np.array([*reasons, None], object)[:-1]
        table = None
        if base.startswith("facts/") and not self.run.keeps_null(name):
            table = held[name] if name in held else self._facts(name, shard)
        if table is None:
            return np.full(len(rows), None, object)
        why = np.full(shard.rows, "not_computed", object)
        done = table[facts.STATUS_COLUMN].to_numpy() == facts.DONE
        given = pc.fill_null(table[facts.REASON], "error").to_numpy(zero_copy_only=False)
        why[table[facts.ROW].to_numpy()] = np.where(done, None, given)
        return why[rows]
