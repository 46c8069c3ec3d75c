"""A unit of a pass as the driver describes it to a worker: its stages, its shards, and what is stored about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from curate.core.contracts import Filter, Map
from curate.core.nouns.pools import Shard
from curate.core.rows import KnownShards, Rows
from curate.core.store.storage import Storage

MARKS = "attempts"
"""Folder of marks: one for each unit under way, so that the next run knows what crashed this one."""
StageResult = dict[str, Any]
"""One stage's part of a shard's result: its ledger entry, counts, and for a Map the number of its table."""
ShardResult = dict[str, Any]
"""One shard: `shard`, `rows`, `steps` (stage -> StageResult), `contents` and `reasons` (point -> digest), `file`."""
Sink = Literal["publish", "count", "discard"]
"""What becomes of the rows: `publish` their results; `count` what a run would compute, for a plan; `discard` them, to
find the row that crashes its process."""
Poison = Mapping[str, Mapping[str, Mapping[int, str]]]


class Stopped(Exception):
    """The run is to stop: the pass publishes what is computed and leaves the rest to the next run."""


@dataclass(frozen=True)
class PassStage:
    """A Map or a Filter of a pass."""

    name: str
    place: int
    """Position in the DAG."""
    stage: Map | Filter
    inputs: tuple[str, ...]
    """Input stages within this pass."""
    base: Rows | None
    """The rows that arrive from inputs outside of the pass; None without such inputs."""
    makers: Mapping[str, str]
    """Column -> the stage of this pass that writes it, for the columns that the stage reads."""
    columns: Rows
    """Columns from outside of the pass."""
    path: str = ""
    """Folder of a Map's facts."""
    ports: Mapping[str, str] = field(default_factory=dict)
    keep_null: bool = False
    may_mark: bool = False
    """Whether a stage upstream passes rows in error."""
    family: str = ""
    """Family of the items that an item filter rejects."""
    families: Mapping[str, str] = field(default_factory=dict)
    """Per-item column -> family, for the columns that the stage reads."""
    where: str = ""
    """Place in the recipe, for messages."""
    earlier: Filter | None = None
    """The filter with the last run's parameters; a plan compares the two."""


@dataclass(frozen=True)
class Point:
    """A place in the DAG whose mask is stored: where the paths through some stages meet."""

    name: str
    inputs: tuple[str, ...]
    """Stages of this pass."""
    base: Rows | None
    """Rows of paths from outside of the pass that meet there too."""


@dataclass(frozen=True, kw_only=True)
class UnitTask:
    """A few shards, and what is known of rows that fail there."""

    storage: Storage
    shards: tuple[Shard, ...]
    poison: Poison = field(default_factory=dict)
    """Shard -> stage -> row that crashes or hangs the process -> the reason to record for it."""
    alone: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Shard -> rows of a batch that hung: each is computed in a batch of one, so that a second hang identifies it."""
    mark: bool = False
    """Leave a mark in MARKS while the unit is under way."""
    retried: bool = False
    """An earlier attempt hung: it may have published some tables."""
    sink: Sink = "publish"
    only: tuple[int, int] | None = None
    """Compute only these rows (first, stop)."""
    aside: str = ""
    """Why the unit's only shard was set aside: every row without a status gets an error."""


@dataclass(frozen=True, kw_only=True)
class PassTask(UnitTask):
    stages: tuple[PassStage, ...]
    points: tuple[Point, ...]
    numbers: Mapping[str, Mapping[str, int]]
    """Stage -> shard -> number of its highest table."""
    known: KnownShards
    """Tables and masks of the shards from outside of the pass."""
    chain: str
    """Folder of the mask."""
    names: tuple[str, ...]
    """All stages of the DAG, in order."""
    bases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Shard -> mask files from outside that its mask depends on."""
    others: Mapping[str, Mapping[str, tuple[tuple[str, int], ...]]] = field(default_factory=dict)
    """Costly stage -> shard -> tables under other fingerprints."""
    indexes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Costly stage -> files of its index of answers -> bytes."""
    retry: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Stage -> reasons whose rows in error are retried (empty: all)."""
    limiter: Mapping[str, Any] | None = None
    """Where the run's limiter answers, for AsyncMaps that ask named endpoints; its key is a secret of the run."""
    segment_seconds: float = 60.0
    """How often results of costly Maps are logged."""


@contextmanager
def under_way(task: UnitTask, folder: str) -> Iterator[None]:
    """Leave a mark in a folder while the unit runs, if it is to leave one. An exception is not a crash."""
    mark = f"{folder}/{MARKS}/{task.shards[0].id}"
    try:
        if task.mark:
            task.storage.mark(mark, " ".join(shard.id for shard in task.shards).encode())
        yield
    finally:
        if task.mark:
            task.storage.remove_file(mark)


def suspects(storage: Storage, folder: str) -> set[str]:
    """Shards that were under way when an earlier run died, by the marks in a folder."""
    found: set[str] = set()
    for file in storage.list(f"{folder}/{MARKS}"):
        with suppress(FileNotFoundError):
            found.update(storage.read(f"{folder}/{MARKS}/{file}").decode().split() or [file])
    return found
