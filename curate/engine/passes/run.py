"""One pass over a unit of shards: every connected Map and Filter, with one read and one decode of each image.

A unit is a few shards, concatenated into one range of rows. Every member goes over the rows in order, as far as the
members before it have got: a Map collects the live rows without facts until a batch is full, a Filter judges at once.
Batches are therefore full across chunks and shards, and no row that an earlier member rejected is computed. Tables are
published in DAG order, then the mask at the points that later steps read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from curate.codec.members import member_columns
from curate.core.contracts import AsyncMap, Filter, Map, by_contract, trait
from curate.core.errors import CurateError, StorageError
from curate.core.nouns import facts
from curate.core.nouns.masks import Fate, columns_of, mask_file
from curate.core.nouns.pools import Shard
from curate.core.rows import POOL_COLUMNS
from curate.engine.passes.answers import log as answer_log
from curate.engine.passes.answers.lookup import Answer
from curate.engine.passes.async_map import LAST_SECONDS, AsyncMember
from curate.engine.passes.counting import CountingFilter, CountingMap
from curate.engine.passes.decode import Decoder
from curate.engine.passes.map import MapMember
from curate.engine.passes.member import FilterMember, PassMember
from curate.engine.passes.task import PassStage, PassTask, Point, ShardResult, Stopped, under_way
from curate.engine.passes.unit import Unit
from curate.engine.tasks import beat

Numbers = dict[str, dict[str, int]]
"""Stage -> shard -> number of its highest table."""

MEMBERS: dict[type, type[PassMember]] = {AsyncMap: AsyncMember, Map: MapMember, Filter: FilterMember}
"""Contract -> how a pass carries out its stages."""
COUNTING: dict[type, type[PassMember]] = {Map: CountingMap, Filter: CountingFilter}
"""The same for a plan."""


class Adopted(Exception):
    """Another run published other values first, so that what this pass computed from its own values is stale."""


def run_pass(task: PassTask) -> list[ShardResult] | None:
    """Results by shard; None if the unit stopped early."""
    task = _with_known(task)
    numbers = {name: dict(of_shard) for name, of_shard in task.numbers.items()}
    for spec in task.stages if (task.retried or beat.current().again) and task.sink != "count" else ():
        if trait(spec.stage, "costly"):
            numbers[spec.name] |= _kept(task, spec)
    counts: dict[str, dict[str, Any]] = {spec.name: {} for spec in task.stages}
    found: dict[str, dict[bytes, Answer]] = {spec.name: {} for spec in task.stages}
    with under_way(task, task.chain):
        while True:
            unit = _Pass(task, numbers, counts, found)
            try:
                return unit.run()
            except Adopted:  # start over: later members read the other run's values
                found = {name: {} for name in found} | {member.name: member.answers() for member in unit.maps}
            except Stopped:
                return None


def _with_known(task: PassTask) -> PassTask:
    """The same task, whose rows from outside find tables and masks in `task.known`."""
    if task.known.plan:
        return task
    known = task.known
    if not task.aside:  # a shard may be set aside because its own table is corrupt
        known = replace(known, pool_columns=_pool_columns(task), pools={})

    stages = tuple(
        replace(spec, base=spec.base and spec.base.with_known(known), columns=spec.columns.with_known(known))
        for spec in task.stages
    )
    points = tuple(replace(point, base=point.base and point.base.with_known(known)) for point in task.points)
    return replace(task, stages=stages, points=points, known=known)


def _pool_columns(task: PassTask) -> tuple[str, ...]:
    """Columns of the pool that the pass reads: the stages' inputs, rejects, and places of images."""
    read = {name for spec in task.stages for name in spec.stage.reads() if name in POOL_COLUMNS}
    if any(trait(spec.stage, "pixels") for spec in task.stages):
        read |= {*member_columns(task.shards), "sha256"}
    parent = ["parent_row"] if any(shard.parent for shard in task.shards) else []
    return ("key", "reject", *parent, *sorted(read - {"key"}))


def _kept(task: PassTask, spec: PassStage) -> dict[str, int]:
    """Shard -> number of its highest table now, with what an earlier attempt at the unit has published or logged."""
    answer_log.fold(task.storage, spec.path, {answer_log.token(shard.id for shard in task.shards)})
    found: dict[str, int] = {}
    for shard in task.shards:
        found |= facts.latest(f"{shard.id}/{name}" for name in task.storage.list(f"{spec.path}/{shard.id}"))
    return found


class _Pass:
    def __init__(
        self,
        task: PassTask,
        numbers: Numbers,
        counts: Mapping[str, dict[str, Any]],
        found: Mapping[str, dict[bytes, Answer]],
    ) -> None:
        self.task, self.storage, self.beat = task, task.storage, beat.current()
        self.unit = unit = Unit(task.storage, task.shards, task.known)
        alone = {
            int(first) + row
            for shard, first in zip(task.shards, unit.edges, strict=False)
            for row in task.alone.get(shard.id, ())
        }
        self.members: dict[str, PassMember] = {}
        for spec in task.stages:
            near = {name: self.members[name] for name in {*spec.inputs, *spec.makers.values()}}
            kinds = COUNTING if task.sink == "count" else MEMBERS
            given = (alone, numbers[spec.name], counts[spec.name], found[spec.name]) if spec.path else ()
            self.members[spec.name] = by_contract(kinds, spec.stage)(task, spec, unit, near, *given)
        self.maps = [member for member in self.members.values() if isinstance(member, MapMember)]
        unit.computes = bool(self.maps)
        pixel = [] if task.sink == "count" or task.aside else [m for m in self.maps if m.stage.pixels]
        self.decoder = Decoder(unit, pixel, alone)
        self.saved = time.monotonic()

    def run(self) -> list[ShardResult]:
        first, last = self.task.only or (0, self.unit.rows)
        saves = self.task.sink == "publish"
        try:
            self._go(first, last, saves)
        except Stopped:
            self._stop_early()
            raise
        except CurateError as error:
            if saves and not isinstance(error, StorageError):  # the run ends; a StorageError is retried
                self._publish(whole=False)
            raise
        else:
            if saves:
                self._publish(whole=True)
            return [] if self.task.sink == "discard" else self._results()
        finally:
            for member in reversed(self.maps):  # stale results first
                member.close()

    def _go(self, first: int, last: int, saves: bool) -> None:
        """Advance every member as images are decoded: each as far as the members before it, at last to the end."""
        for stop in self.decoder.run(first, last):
            for member in self.members.values():
                with member.named():
                    for _ in member.advance(stop):
                        self._after_batch(member, saves)
        for member in self.members.values():
            with member.named():
                for _ in member.advance(last):
                    self._after_batch(member, saves)
                for _ in member.flush():
                    self._after_batch(member, saves)

    def _after_batch(self, member: PassMember, saves: bool) -> None:
        """Stop if the run is to stop; log the results of costly stages periodically."""
        if not saves:
            return
        if self.beat.stopping:
            raise Stopped
        costly = isinstance(member, MapMember) and member.stage.costly
        if costly and time.monotonic() - self.saved > self.task.segment_seconds:
            for each in self.maps:
                each.save()
            self.saved = time.monotonic()

    def _stop_early(self) -> None:
        """Publish what is computed. Workers that take too long are killed, so answers in flight are waited for last:
        shortly if the run is to stop, to the end if its budget is used up, because they are paid for."""
        until = time.monotonic() + LAST_SECONDS if self.beat.stopping else math.inf
        self._publish(whole=False)
        arrived = [member.wait_for_answers(until) for member in self.maps]
        if any(arrived):
            self._publish(whole=False)

    def _publish(self, whole: bool) -> None:
        """Publish tables in DAG order. Start over if another run's values differ."""
        for member in self.maps:
            if member.publish(whole):
                for later in self.maps:
                    later.stale |= member.name in later.depends
                raise Adopted

    # --- results ---

    def _results(self) -> list[ShardResult]:
        points = {point.name: self._fate(point) for point in self.task.points}
        results = []
        for index, shard in enumerate(self.unit.shards):
            start, stop = self.unit.edges[index], self.unit.edges[index + 1]
            steps = {member.name: member.result(index, start, stop) for member in self.members.values()}
            found: ShardResult = {"shard": shard.id, "rows": shard.rows, "steps": steps}
            fates = {name: fate.slice(start, stop) for name, fate in points.items()}
            found["contents"] = {name: fate.content() for name, fate in fates.items()}
            found["reasons"] = {name: fate.reasons() for name, fate in fates.items()}
            if self.task.sink == "count":
                found["fates"] = fates
                copied = [member for member in self.maps if steps[member.name]["copied"]]
                found["tables"] = {member.name: member.table(index) for member in copied}
            else:
                found["file"] = self._save_mask(shard, fates)
            results.append(found)
        return results

    def _save_mask(self, shard: Shard, fates: Mapping[str, Fate]) -> str:
        """Publish a shard's mask; returns its path."""
        numbers = {member.name: member.facts.numbers.get(shard.id, 0) for member in self.maps}
        file = mask_file(self.task.chain, shard.id, numbers, self.task.bases.get(shard.id, ()))
        columns: dict[str, pa.Array] = {}
        for name, fate in fates.items():
            columns |= columns_of(name, fate, self.task.names)
        if columns:
            self.storage.publish_table(file, pa.table(columns))
        return file

    def _fate(self, point: Point) -> Fate:
        fates = [self.members[name].after for name in point.inputs]
        if point.base is not None:
            fates.append(self.unit.fate(point.base))
        found = fates[0]
        for fate in fates[1:]:
            found = found.intersect(fate)
        return found
