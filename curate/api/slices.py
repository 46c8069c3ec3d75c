"""Slices: rows of a run that a stage passes on or rejects, page by page under a time limit."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.api.tables import Reads
from curate.core.errors import CorruptError, InputError
from curate.core.hashing import digest
from curate.core.nouns.masks import NO_REASON
from curate.core.nouns.pools import read_pool, read_shards
from curate.engine.record.live import WITH_ROWS as WITH_ROWS
from curate.engine.record.runs import RunRecord

FIXED = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("shard", pa.string(), metadata={"of": "id"}),
        pa.field("row", pa.int64(), metadata={"of": "place in the shard"}),
        pa.field("media", pa.string()),
        pa.field("name", pa.string(), metadata={"of": "file"}),
        pa.field("url", pa.string()),
        pa.field("reason", pa.string(), metadata={"of": "null if the stage passes the row on"}),
    ]
)
"""Columns of every slice; those that were asked for follow."""
MOST_ROWS = 1000
SPREAD = 8
"""Shards of a preview, at even distances."""
NAMED = ("name", "source_id")
"""Columns that `name_of` takes."""
_KEY = re.compile("[0-9a-f]{32}")


def name_of(name: str | None, source_id: str | None) -> str | None:
    """The file's name; where its pool named it by a key, the last part of where it came from."""
    own = None if name is None or _KEY.match(name) else name
    return own or (source_id or "").rstrip("/").rpartition("/")[2] or name


class Region(Protocol):
    """Part of a map. Its repr is part of cursors."""

    @property
    def columns(self) -> Sequence[str]:
        """Columns that it reads."""
        ...

    def holds(self, table: pa.Table) -> NDArray[np.bool_]:
        """Which rows (n,) of a table with its columns are inside."""
        ...


@dataclass(frozen=True)
class Slice:
    stage: str
    rejected: str | None = None
    """None: rows alive at the stage; "": rows that it rejected; otherwise those that it rejected for this reason."""
    where: str | None = None
    """An expression over columns, as in `filter.where`."""
    within: Region | None = None


@dataclass(frozen=True)
class SlicePage:
    table: pa.Table
    """Columns of FIXED, then those that were asked for."""
    searched: int
    """Shards read so far, from the first, over all pages."""
    shards: int
    next: str
    """The cursor that continues; "" after the last row. The page may be short, or empty, because time was up."""
    lost: tuple[str, ...] = ()
    """Why shards of this page cannot be read: their tables are gone. Their rows are left out."""


class SliceReader:
    """Raises InputError for an unknown stage, column or expression."""

    def __init__(self, run: RunRecord, which: Slice, columns: Sequence[str] = ()) -> None:
        self.which = which
        self.columns = [name for name in dict.fromkeys(columns) if name not in FIXED.names]
        about = run.record["stages"].get(which.stage)
        media = ["media"] if about and run.record["stages"][run.pool_of(which.stage)].get("media") else []
        every = dict.fromkeys(["key", *media, *NAMED, "url", *self.columns])
        self.reads = Reads(run, which.stage, list(every), which.where)
        rows = self.reads.rows
        inside = which.within.columns if which.within is not None else ()
        self._read = list(dict.fromkeys([*self.reads.columns, *self.reads.judged, *inside]))
        own = [self.reads.schema.field(name) for name in self.columns]
        self.schema = pa.schema([*FIXED, *own])
        bases = {name: rows.bases[name] for name in {rows.places[name][0] for name in self._read}.union(rows.path)}
        self.mark = digest([run.run_id, repr(which), self.columns, bases])[:12]

    def shard(self, place: int) -> pa.Table:
        """The slice of one shard."""
        shard = self.reads.rows.shards[place]
        table, alive, why = self.reads.rows.judged(shard, self._read)
        wanted = alive if self.which.rejected is None else why != NO_REASON
        if self.which.rejected:
            wanted = why == self.which.rejected
        rows = np.flatnonzero(wanted)
        table = table.take(pa.array(rows))
        table = table.append_column("\0row", pa.array(rows, pa.int64()))
        table = table.append_column("\0why", pa.array(why[rows], pa.string()))
        table = self.reads.matching(table)
        if self.which.within is not None:
            table = table.filter(pa.array(self.which.within.holds(table)))
        shown = self.reads.shown(table)
        made = {"shard": pa.array([shard.id] * len(table)), "row": table["\0row"], "reason": table["\0why"]}
        made |= {name: shown[name] for name in shown.column_names}
        made["name"] = pa.array(map(name_of, *(shown[name].to_pylist() for name in NAMED)), pa.string())
        none = pa.nulls(len(table), pa.string())
        return pa.table([made.get(name, none) for name in self.schema.names], schema=self.schema)

    def spread(self, limit: int, seconds: float) -> SlicePage:
        """Up to `limit` rows from all over the slice, in the order of their keys, which are hashes. No further shard is
        read after `seconds`."""
        count, until = len(self.reads.rows.shards), time.monotonic() + seconds
        found = [self.schema.empty_table().append_column("\0rank", pa.array([], pa.int64()))]
        for place in _spread(count):
            with contextlib.suppress(CorruptError):
                table = self.shard(place).sort_by("key")[:limit]
                found.append(table.append_column("\0rank", pa.array(range(len(table)), pa.int64())))
            if time.monotonic() >= until:
                break
        table = pa.concat_tables(found).sort_by([("\0rank", "ascending"), ("key", "ascending")])[:limit]
        if len(table) < limit and count > SPREAD:  # most of its rows are elsewhere
            return self.page("", limit, max(0.0, until - time.monotonic()))
        return SlicePage(table.drop_columns("\0rank").sort_by("key"), len(found) - 1, count, "")

    def page(
        self, cursor: str, limit: int, seconds: float, shard: Callable[[int], pa.Table] | None = None, mark: str = ""
    ) -> SlicePage:
        """Up to `limit` rows after a cursor. At least one shard is read, and no further one after `seconds`. shard: a
        part of the slice of a shard, by its place, whose cursors have another `mark`."""
        shard, mark = shard or self.shard, mark or self.mark
        if type(limit) is not int or not 1 <= limit <= MOST_ROWS:
            raise InputError(f"limit: {limit}: expected 1 to {MOST_ROWS} rows")
        count, until = len(self.reads.rows.shards), time.monotonic() + seconds
        at, skip = self.reads.after(cursor, mark, range(count))
        tables, left, searched = [self.schema.empty_table()], limit, at
        lost: list[str] = []
        while at < count and left and (searched == at or time.monotonic() < until):
            try:
                table = shard(at)
            except CorruptError as error:
                table = self.schema.empty_table()
                lost.append(str(error))
            searched = at + 1
            part = table.take(pa.array(range(len(table))[skip : skip + left], pa.int64()))  # without the shard's memory
            tables.append(part)
            left -= len(part)
            at, skip = (at + 1, 0) if skip + len(part) >= len(table) else (at, skip + len(part))
            if time.monotonic() >= until:
                break
        following = f"{mark}:{at}:{skip}" if at < count else ""
        return SlicePage(pa.concat_tables(tables), searched, count, following, tuple(lost))


def _spread(count: int) -> list[int]:
    return np.linspace(0, count - 1, min(count, SPREAD)).astype(int).tolist() if count else []


def has_captions(run: RunRecord) -> bool:
    """Whether samples came with captions, by up to SPREAD shards of each pool, or a stage wrote texts."""
    if any(op.startswith("caption.") or op == "text.tags" for op in run.ops().values()):
        return True
    for base in (str(output["base"]) for output in run.outputs.values()):
        shards = read_shards(run.storage, base) if base.startswith("pools/") else []
        for place in _spread(len(shards)):
            captions = read_pool(run.storage, shards[place].table, ["caption"]).column(0)
            if captions.null_count < len(captions):
                return True
    return False
