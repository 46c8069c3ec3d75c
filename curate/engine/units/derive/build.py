"""A Derive in the driver: which parents need children, recovery from failures, and the version that lists everything.

    pools/<namespace>/versions/<version>/    manifest, shards.parquet, covers.parquet

A version is named by what decides it: the highest table and the alive rows of every shard of the parents. Its content,
on which later stages depend, is the children's shards and their alive rows; a child whose parent is rejected is absent.
A stricter filter upstream therefore computes nothing, and a looser one only the children of parents that it adds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.core.contracts import Derive
from curate.core.errors import InputError
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns import facts
from curate.core.nouns.manifest import Manifest, read_results
from curate.core.nouns.pools import Shard, lines_of, pool_base
from curate.core.recipe.pipeline import Node
from curate.engine.context import Context
from curate.engine.fingerprints import children_fingerprint, content_by_shard
from curate.engine.passes.recovery import Recovery
from curate.engine.passes.task import MARKS, suspects
from curate.engine.state import Built, Pool
from curate.engine.units import keys
from curate.engine.units.common import dump, stretches
from curate.engine.units.derive.children import DeriveTask, derive_shards
from curate.engine.units.derive.record import ParentsResult, read_record, result_of
from curate.engine.units.pools import COVERS


class DeriveBuild:
    def __init__(self, ctx: Context, node: Node) -> None:
        assert isinstance(node.stage, Derive)
        self.ctx, self.node, self.stage = ctx, node, node.stage
        self.built = ctx.outputs.built[node.name] = Built(children_fingerprint(ctx.outputs, node), "")
        self.folder = f"pools/{self.stage.namespace}/derived/{self.built.fingerprint}"
        self.parents = ctx.outputs.pool_upstream(node).shards
        self.whole_rows = ctx.outputs.whole_pool_rows(ctx.pipeline.nodes[ctx.pipeline.pool_upstream(node.name)])
        self.rows, self.alive = ctx.outputs.rows(node), content_by_shard(ctx.outputs, node)
        self.retry, self.runner = ctx.options.retry.get(node.name), ParentsRunner(self)
        self.numbers: dict[str, int] = {}
        """Parents' shard -> number of its highest table."""
        self.suspects: set[str] = set()
        """Shards that were under way when an earlier run died."""
        self.results: dict[str, bytes] = {}
        """Parents' shard -> its result as JSON, about 700 bytes."""

    def make(self) -> None:
        self.survey()
        if not self.reuse():
            with self.ctx.lease(self.node, self.folder):
                self.survey()
                if not self.reuse():
                    self.build()

    def survey(self) -> None:
        files = self.ctx.storage.list(self.folder)
        self.numbers = facts.latest(files)
        self.suspects = suspects(self.ctx.storage, self.folder)

    def version(self) -> str:
        known = [[shard.id, self.numbers.get(shard.id, 0), self.alive[shard.id]] for shard in self.parents]
        return pool_base(self.stage.namespace, digest({"stage": self.built.fingerprint, "parents": known}))

    def reuse(self) -> bool:
        """Use the version of these tables and parents if it exists; returns whether it does."""
        base = self.version()
        manifest = None if self.retry is not None else Manifest.load(self.ctx.storage, base)
        if manifest is None:
            return False
        covers = read_results(self.ctx.storage, base, COVERS)
        for shard, result in zip(covers.column("id").to_pylist(), covers.column("result").to_pylist(), strict=True):
            self.results[shard] = result.encode()
        for result in self._results():
            self._count(result)
        self._finish(base, manifest)
        self.ctx.progress.reused(self.node.name, manifest.rows)
        return True

    def look(self, shard: Shard) -> tuple[int, int]:
        """(alive parents of a shard, alive parents without a status); computes no children."""
        number, alive = self.numbers.get(shard.id, 0), self.rows.alive(shard)
        record = read_record(self.ctx.storage, self.folder, shard.id, number)
        marked = self.rows.marked(shard, self.stage.reads())
        missing = len(record.missing(np.flatnonzero(alive).tolist(), self.retry, marked))
        if not missing:
            self.results[shard.id] = dump(result_of(shard, alive, number, record))
        return int(alive.sum()), missing

    def build(self) -> None:
        began = time.monotonic()
        with self.ctx.progress.step(self.node.name, sum(shard.rows for shard in self.parents)) as self._bar:
            self._run_units([shard for shard in self.parents if shard.id not in self.suspects])
            for shard in (shard for shard in self.parents if shard.id in self.suspects):
                self.runner.recover_crashed(shard)
        self._commit(time.monotonic() - began)

    def _run_units(self, shards: Sequence[Shard]) -> None:
        """Run units of several shards, then recover those that failed."""
        units = [tuple(shards[i:j]) for i, j in stretches([s.rows for s in shards], self.ctx.options.task_rows)]
        failed = []
        for task, outcome in self.runner.run(self.runner.task(unit) for unit in units):
            if outcome.error is None:
                self.accept(task, outcome.value)
            else:
                failed.append((task, outcome))
        for task, outcome in failed:
            self.runner.recover(task, outcome)

    def accept(self, task: DeriveTask, results: list[ParentsResult]) -> None:
        counts = self.built.counts
        for shard, result in zip(task.shards, results, strict=True):
            counts.computed += result.pop("computed")
            counts.repeated += result.pop("repeated")
            counts.requests = counts.computed + counts.repeated
            self.results[shard.id], self.numbers[shard.id] = dump(result), result["number"]
            self._bar.advance(shard.rows, Entry.from_json(result["entry"]).lost.total())
            self._count(result)

    def _count(self, result: ParentsResult) -> None:
        entry = Entry.from_json(result["entry"])
        self.ctx.losses.add(self.node.name, entry, result["messages"], self.whole_rows)

    # --- committing ---

    def _commit(self, wall: float) -> None:
        """Commit the version of the present tables."""
        ctx, base = self.ctx, self.version()
        self.built.base = base
        entry, shards = self.entry(), self._shards()
        if not shards:
            raise InputError(
                f"{self.node.name}: {self.stage.op} made no samples from {entry.before:,} parents; {_remedy(entry)}"
            )
        folder = keys.folder_of(self.stage.namespace, shards)
        index = keys.build_index(ctx, self.node, folder, shards)
        keys.tidy_index(ctx.storage, folder)
        ids = [parent.id for parent in self.parents]
        covers = {
            "id": pa.array(ids, pa.string()),
            "number": pa.array([self.numbers[parent] for parent in ids], pa.int64()),
            "result": pa.array([self.results[parent].decode() for parent in ids], pa.string()),
        }
        ctx.storage.publish_table(f"{base}/{COVERS}", pa.table(covers))
        manifest = ctx.outputs.finish(
            self.node, self.built, "pool", entry, lines_of(shards),
            rows=entry.children or 0, bytes=sum(shard.tar_bytes for shard in shards), seconds=round(wall, 3),
            built_rows=self.built.counts.computed, content=self._content(),
            extra={"derived": self.folder, "keys": index},
        ).manifest  # fmt: skip
        if self.suspects:
            ctx.storage.remove(f"{self.folder}/{MARKS}")
        assert manifest is not None
        self._finish(base, manifest)

    def entry(self) -> Entry:
        entry = Entry()
        for result in self._results():
            entry += Entry.from_json(result["entry"])
        return entry

    def pool(self) -> Pool:
        alive = {shard: found for result in self._results() for shard, found in result["alive"].items()}
        return Pool(self.stage.namespace, self._content(), self._shards(), self.rows, alive)

    def _results(self) -> Iterator[ParentsResult]:
        """Results of the parents' shards, in order of the pool."""
        return (json.loads(self.results[parent.id]) for parent in self.parents)

    def _shards(self) -> list[Shard]:
        return [
            Shard(**shard | {"parent": dump(parent.to_json()).decode()})
            for parent, result in zip(self.parents, self._results(), strict=True)
            for shard in result["shards"]
        ]

    def _content(self) -> str:
        """Digest of the shards with alive children, and of these children."""
        alive = [pair for result in self._results() for pair in result["alive"].items() if pair[1]]
        return digest({"namespace": self.stage.namespace, "alive": alive})

    def _finish(self, base: str, manifest: Manifest) -> None:
        """Record the pool for the rest of the run."""
        ctx, built, counts = self.ctx, self.built, self.built.counts
        built.base, built.manifest, built.content = base, manifest, manifest.content
        built.reused, counts.rebuilt = not counts.computed, bool(counts.computed)
        ctx.outputs.pools[self.node.name] = self.pool()


class ParentsRunner(Recovery[DeriveTask]):
    """The units of a Derive."""

    function = staticmethod(derive_shards)

    def __init__(self, build: DeriveBuild) -> None:
        super().__init__(build.ctx, [build.node], build.accept)
        self.build = build

    def task(self, shards: tuple[Shard, ...], **changes: Any) -> DeriveTask:
        ctx, build = self.ctx, self.build
        return DeriveTask(
            storage=ctx.storage,
            shards=shards,
            stage=build.stage,
            name=build.node.name,
            rows=ctx.outputs.placed(build.rows, shards),
            ports=ctx.outputs.ports(build.node),
            folder=build.folder,
            numbers=tuple(build.numbers.get(shard.id, 0) for shard in shards),
            retry=build.retry,
            mark=not ctx.backend.separate,
            **changes,
        )

    def again(self, task: DeriveTask, **changes: Any) -> DeriveTask:
        [shard] = task.shards
        self.refresh(shard)
        return self.task((shard,), **changes)

    def refresh(self, shard: Shard) -> None:
        files = self.ctx.storage.list(f"{self.build.folder}/{shard.id}")
        self.build.numbers |= facts.latest(f"{shard.id}/{name}" for name in files)


def _remedy(entry: Entry) -> str:
    if not entry.before:
        return "loosen the filters upstream"
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in entry.lost.most_common(3))
    return (
        f"they are {reasons}; give it other parents" if reasons else "give it other parents, or change its parameters"
    )
