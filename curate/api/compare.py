"""Two runs beside each other: the rows that pass a stage in one and not in the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
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
    """Raises InputError if the runs share no stage with rows, or no shard."""

    def __init__(self, first: RunRecord, second: RunRecord, stage: str = "") -> None:
        self.stages = shared_stages(first, second)
        names = f"runs {first.run_id} and {second.run_id}"
        if not self.stages:
            raise InputError(f"{names} have no stage in common that passes on rows; compare runs of one recipe")
        self.stage = stage or self.stages[0]
        self.readers = [SliceReader(run, Slice(self.stage)) for run in (first, second)]
        self.held = [{shard.id: place for place, shard in enumerate(one.reads.rows.shards)} for one in self.readers]
        if not self.held[0].keys() & self.held[1].keys():
            pools = " and ".join(one.reads.rows.bases[one.reads.rows.pool] for one in self.readers)
            raise InputError(f"{names} have no shard in common at {self.stage} ({pools}), so their keys differ")

    @cached_property
    def shards(self) -> list[str]:
        """Ids of the shards of either run, those of the first run first."""
        return list(dict.fromkeys([*self.held[0], *self.held[1]]))

    def alive(self, shard: str) -> list[NDArray[np.bool_]]:
        """Which rows (n,) of a shard pass in the first run, and in the second one; none if it has no such shard."""
        found = [self._alive(side, shard) for side in (0, 1)]
        rows = max(len(one) for one in found)
        return [one if len(one) else np.zeros(rows, bool) for one in found]

    def _alive(self, side: int, shard: str) -> NDArray[np.bool_]:
        rows, place = self.readers[side].reads.rows, self.held[side].get(shard)
        return np.zeros(0, bool) if place is None else rows.judged(rows.shards[place], [])[1]

    def counts(self) -> Changed:
        """Exact, shard by shard."""

        def counted(shard: str) -> NDArray[np.int64]:
            before, after = self.alive(shard)
            return np.array([(before & after).sum(), (after & ~before).sum(), (before & ~after).sum()], np.int64)

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
        before, after = self.alive(shard.id)
        changed = after & ~before if side == GAINED else before & ~after
        own, other = self.readers[side == GAINED], self.readers[side != GAINED]
        if not changed.any():
            return own.schema.empty_table()
        table = own.shard(self.held[side == GAINED][shard.id])
        table = table.filter(pa.array(changed[table["row"].to_numpy()]))
        place = self.held[side != GAINED].get(shard.id)
        if place is None:
            return table
        why = other.reads.rows.judged(other.reads.rows.shards[place], [])[2][table["row"].to_numpy()]
        return table.set_column(
            table.schema.get_field_index("reason"), own.schema.field("reason"), pa.array(why, pa.string())
        )
