"""Two runs beside each other: the rows that pass a stage in one and not in the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.api.slices import Slice, SlicePage, SliceReader
from curate.api.tables import READERS
from curate.api.thresholds.rules import stages_of
from curate.core.errors import InputError
from curate.core.hashing import digest
from curate.core.nouns.pools import Shard
from curate.engine.record.runs import RunRecord
from curate.engine.units.common import fetched

GAINED, LOST = "gained", "lost"
MOST_MOVED = 2_000_000
"""Rows in shards that one run alone has, of the run with fewer of these."""
MOVED = pa.schema([("key", pa.string()), ("alive", pa.bool_()), ("reason", pa.string())])


@dataclass(frozen=True)
class Changed:
    """Rows that pass a stage: in both runs, in the second one alone, and in the first one alone."""

    both: int
    gained: int
    lost: int


def shared_stages(first: RunRecord, second: RunRecord) -> list[str]:
    """Stages that pass on rows in both runs, the last one first; pools only if there is nothing else."""
    others = stages_of(second)
    shared = [name for name in reversed(stages_of(first)) if name in others]
    return sorted(shared, key=lambda name: first.outputs[name]["base"].startswith("pools/"))


class Comparison:
    """Rows of a shard that both runs have are compared by their place, others by key. Raises InputError if the runs
    share no stage with rows."""

    def __init__(self, first: RunRecord, second: RunRecord, stage: str = "") -> None:
        self.stages = shared_stages(first, second)
        if not self.stages:
            names = f"runs {first.run_id} and {second.run_id}"
            raise InputError(f"{names} have no stage in common that passes on rows; compare runs of one recipe")
        self.stage = stage or self.stages[0]
        self.readers = [SliceReader(run, Slice(self.stage)) for run in (first, second)]
        self.held = [{shard.id: place for place, shard in enumerate(one.reads.rows.shards)} for one in self.readers]

    @cached_property
    def shards(self) -> list[str]:
        """Ids of the shards of either run, those of the first run first."""
        return list(dict.fromkeys([*self.held[0], *self.held[1]]))

    def _fate(self, side: int, shard: str) -> pa.Table:
        """`alive` and `reason` of the rows of a shard of one run, in the other run: false and null if it has none."""
        rows, place = self.readers[1 - side].reads.rows, self.held[1 - side].get(shard)
        if place is not None:
            _, alive, why = rows.judged(rows.shards[place], [])
            return pa.table({"alive": alive, "reason": pa.array(why, pa.string())})
        keys = self._judged(side, shard).column("key")
        found = self._moved[1 - side]
        places = pc.index_in(keys, value_set=found.column("key"))
        fate = found.select(["alive", "reason"]).take(places)
        return fate.set_column(0, "alive", fate.column("alive").fill_null(False))

    def _alive(self, side: int, shard: str) -> NDArray[np.bool_]:
        """Which rows (n,) of a shard of one run pass."""
        rows = self.readers[side].reads.rows
        return rows.judged(rows.shards[self.held[side][shard]], [])[1]

    def _judged(self, side: int, shard: str) -> pa.Table:
        """`key`, `alive` and `reason` of the rows of a shard of one run."""
        rows = self.readers[side].reads.rows
        table, alive, why = rows.judged(rows.shards[self.held[side][shard]], ["key"])
        return pa.table([table.column("key").cast(pa.string()), alive, pa.array(why, pa.string())], MOVED)

    @cached_property
    def _moved(self) -> list[pa.Table]:
        """For each run, `_judged` of the rows in shards that it alone has, if the other one has their keys in such a
        shard. Raises InputError if these are too many."""
        alone = [[shard for shard in one if shard not in other] for one, other in (self.held, self.held[::-1])]
        sizes = [
            sum(one.reads.rows.shards[self.held[side][shard]].rows for shard in alone[side])
            for side, one in enumerate(self.readers)
        ]
        small = int(np.argmin(sizes))
        if sizes[small] > MOST_MOVED:
            raise InputError(
                f"{self.stage}: each run alone has shards with {sizes[small]:,} rows or more; at most "
                f"{MOST_MOVED:,} are compared by key"
            )
        found = [MOVED.empty_table(), MOVED.empty_table()]
        if sizes[small]:
            found[small] = self._all(small, alone[small])
            found[1 - small] = self._all(1 - small, alone[1 - small], found[small].column("key"))
        return found

    def _all(self, side: int, shards: list[str], keys: pa.ChunkedArray | None = None) -> pa.Table:
        def read(shard: str) -> pa.Table:
            table = self._judged(side, shard)
            return table if keys is None else table.filter(pc.is_in(table.column("key"), value_set=keys))

        return pa.concat_tables([MOVED.empty_table(), *fetched(read, shards, READERS)]).combine_chunks()

    def counts(self) -> Changed:
        """Exact, shard by shard."""

        def counted(shard: str) -> NDArray[np.int64]:
            side = 0 if shard in self.held[0] else 1
            own = self._alive(side, shard)
            other = self._fate(side, shard).column("alive").to_numpy()
            both, mine, others = (own & other).sum(), (own & ~other).sum(), (other & ~own).sum()
            if side:  # the rows of its keys in the first run are counted there
                return np.array([0, mine, 0], np.int64)
            return np.array([both, others if shard in self.held[1] else 0, mine], np.int64)

        return Changed(*sum(fetched(counted, self.shards, READERS), np.zeros(3, np.int64)).tolist())

    def page(self, side: str, cursor: str = "", limit: int = 60, seconds: float = 2.0) -> SlicePage:
        """Rows that are `gained` or `lost`, as a page of a slice of the run that has them; `reason`: why the stage
        rejects them in the other run, null if they were rejected before it."""
        if side not in (GAINED, LOST):
            raise InputError(f"side: {side[:20]!r}: expected {GAINED} or {LOST}")
        own = self.readers[side == GAINED]
        mark = digest([side, own.mark, self.readers[side != GAINED].mark])[:12]
        shards = own.reads.rows.shards
        return own.page(cursor, limit, seconds, lambda place: self._changed(side, shards[place]), mark)

    def _changed(self, side: str, shard: Shard) -> pa.Table:
        mine = int(side == GAINED)
        own, fate = self.readers[mine], self._fate(mine, shard.id)
        if not (self._alive(mine, shard.id) & ~fate["alive"].to_numpy()).any():
            return own.schema.empty_table()
        table = own.shard(self.held[mine][shard.id])
        fate = fate.take(table.column("row"))
        table = table.set_column(table.schema.get_field_index("reason"), own.schema.field("reason"), fate["reason"])
        return table.filter(pc.invert(fate["alive"]))
