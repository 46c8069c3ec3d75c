"""Building a derived pool: which parents lack their children, and the version that lists all shards.

A version is named by what decides it: of every shard of the parents, its highest table and who is alive there. Its
content, which later stages depend on, is the children's shards and who is alive in each; a child whose parent is not
alive is absent. So a stricter filter computes nothing, and a looser one the children of the parents it lets in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.core import facts
from curate.core.contracts import Derive
from curate.core.errors import InputError
from curate.core.hashing import digest
from curate.core.ledger import SET_ASIDE, Entry, total
from curate.core.nouns import Manifest, Shard, pool_base, read_lines
from curate.core.pipeline import Node
from curate.engine.backends import How, Outcome
from curate.engine.context import Built, Context, Pool
from curate.engine.passes.build import Stretch, killers
from curate.engine.passes.task import ATTEMPTS
from curate.engine.units.deriving import COVERS, DeriveTask, derive_shard, read_record, told

Line = dict[str, Any]


class DeriveBuild:
    def __init__(self, ctx: Context, node: Node) -> None:
        assert isinstance(node.stage, Derive)
        self.ctx, self.node, self.stage = ctx, node, node.stage
        self.built = ctx.built[node.name] = Built(ctx.fingerprint(node), "")
        self.folder = f"pools/{self.stage.namespace}/derived/{self.built.fingerprint}"
        self.parents = ctx.pool_upstream(node).shards
        self.whole_rows = ctx.whole_pool_rows(ctx.pipeline.nodes[ctx.pipeline.pool_upstream(node.name)])
        self.rows, self.alive = ctx.rows(node), ctx.contents_by_shard(node)
        self.retry = ctx.options.retry.get(node.name)
        self.numbers: dict[str, int] = {}
        """Parents' shard -> its highest table."""
        self.suspects: set[str] = set()
        """Shards that were under way when an earlier run died."""
        self.lines: dict[str, Line] = {}
        """Parents' shard -> what is known of it."""

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
        self.suspects = {file.removeprefix(f"{ATTEMPTS}/") for file in files if file.startswith(f"{ATTEMPTS}/")}

    def version(self) -> str:
        known = [[shard.id, self.numbers.get(shard.id, 0), self.alive[shard.id]] for shard in self.parents]
        return pool_base(self.stage.namespace, digest({"stage": self.built.fingerprint, "parents": known}))

    def reuse(self) -> bool:
        """Whether the version of these very tables and parents is there: then nothing is lacking."""
        base = self.version()
        manifest = None if self.retry is not None else Manifest.load(self.ctx.storage, base)
        if manifest is None:
            return False
        said = read_lines(self.ctx.storage, base, ["said"], COVERS).column("said").to_pylist()
        self.lines = {line["id"]: line for line in map(json.loads, said)}
        for line in self.lines.values():
            self._lose(line)
        self._note(base, manifest)
        self.ctx.progress.reused(self.node.name, manifest.rows)
        return True

    def look(self, shard: Shard) -> tuple[int, int]:
        """(alive parents of a shard, those that lack their children), without making any."""
        number, alive = self.numbers.get(shard.id, 0), self.rows.alive(shard)
        record = read_record(self.ctx.storage, self.folder, shard.id, number)
        lacking = len(record.lacking(np.flatnonzero(alive).tolist(), self.retry))
        if not lacking:
            self.lines[shard.id] = told(shard, alive, number, record)
        return int(alive.sum()), lacking

    def build(self) -> None:
        began = time.monotonic()
        with self.ctx.progress.step(self.node.name, sum(shard.rows for shard in self.parents)) as self._bar:
            self._work_off([shard for shard in self.parents if shard.id not in self.suspects])
            for shard in (shard for shard in self.parents if shard.id in self.suspects):
                self._suspicious(shard)
        self._commit(time.monotonic() - began)

    # --- work and failure ---

    def _task(self, shard: Shard, **changes: Any) -> DeriveTask:
        ctx, mark = self.ctx, self.ctx.backend.name == "local"
        values = {"retry": self.retry, "mark": mark, "number": self.numbers.get(shard.id, 0)} | changes
        return DeriveTask(ctx.storage, self.stage, self.rows, ctx.ports(self.node), shard, self.folder, **values)

    def _run(self, tasks: Sequence[DeriveTask], *, isolated: bool = False) -> Iterator[tuple[DeriveTask, Outcome]]:
        for outcome in self.ctx.run(derive_shard, tasks, self.stage, How(isolated=isolated)):
            yield tasks[outcome.index], outcome

    def _work_off(self, shards: list[Shard]) -> None:
        failed = []
        for task, outcome in self._run([self._task(shard) for shard in shards]):
            if outcome.error is None:
                self._accept(task.shard, outcome.value)
            else:
                failed.append((task.shard, outcome))
        for shard, outcome in failed:
            if outcome.crashed:
                self._suspicious(shard)
            else:
                self._set_aside(shard, str(outcome.error))

    def _accept(self, shard: Shard, line: Line) -> None:
        counts = self.built.counts
        counts.computed += line.pop("computed")
        counts.repeated += line.pop("repeated")
        counts.requests = counts.computed + counts.repeated
        line.pop("seconds")
        self.lines[shard.id], self.numbers[shard.id] = line, line["number"]
        self._bar.advance(shard.rows, Entry.from_json(line["entry"]).lost.total())
        self._lose(line)

    def _lose(self, line: Line) -> None:
        """Count a shard's parents in error, found now or by a run before."""
        error = Entry.from_json(line["entry"]).error
        if error:
            reason = next(iter(error))
            why = f"{self.node.name}: {line['messages'].get(reason, reason)}"
            lost = self.ctx.lost.get(self.node.name, 0) + error.total()
            self.ctx.lose(self.node.name, lost, why, self.whole_rows)

    def _suspicious(self, shard: Shard) -> None:
        """A shard whose task died with its process: find the parents that do it, and try once more without them."""
        outcome = self._alone(self._task(shard))
        if outcome is not None and outcome.crashed:

            def crashing(stretches: list[Stretch]) -> list[Stretch]:
                probes = [self._task(shard, probe=stretch, mark=False) for stretch in stretches]
                return [p.probe for p, found in self._run(probes, isolated=True) if found.crashed and p.probe]

            rows = killers(shard.rows, crashing)
            self.ctx.events.emit("poison", shard=shard.id, rows={self.node.name: rows})
            outcome = self._alone(self._task(shard, poison=tuple(rows)))
        if outcome is not None:
            self._set_aside(shard, str(outcome.error))

    def _alone(self, task: DeriveTask) -> Outcome | None:
        """Run one task in a process that may die; None when all went well."""
        [(_, outcome)] = self._run([task], isolated=True)
        if outcome.error is not None:
            return outcome
        self._accept(task.shard, outcome.value)
        return None

    def _set_aside(self, shard: Shard, error: str) -> None:
        """A shard that fails for good: its parents without a status are in error; `curate retry` tries them again."""
        self.ctx.events.emit(SET_ASIDE, shard=shard.id, tar=shard.tar, error=error)
        self.ctx.progress.say(f"  shard {shard.id} ({shard.tar}) is set aside: {error}")
        task = self._task(shard, aside=error, mark=False)
        [line] = self.ctx.must(derive_shard, [task], self.stage, f"shard {shard.id}")
        self._accept(shard, line)

    # --- committing ---

    def _commit(self, wall: float) -> None:
        """The version, by the tables that are there now."""
        ctx, base = self.ctx, self.version()
        lines = [self.lines[shard.id] for shard in self.parents]
        covers = [
            {"id": line["id"], "number": line["number"], "said": json.dumps(line, sort_keys=True)} for line in lines
        ]
        ctx.storage.publish_table(f"{base}/{COVERS}", pa.Table.from_pylist(covers))
        self.built.base = base
        entry, shards = self.entry(), self._shards()
        if not shards:
            raise InputError(f"{self.node.name}: {self.stage.op} made no sample out of {entry.before:,}; {_why(entry)}")
        manifest = ctx.finish(
            self.node, self.built, "pool", entry, [shard.to_json() for shard in shards],
            rows=entry.children or 0, bytes=sum(shard.tar_bytes for shard in shards), seconds=round(wall, 3),
            built_rows=self.built.counts.computed, content=self._content(), extra={"derived": self.folder},
        ).manifest  # fmt: skip
        for shard in self.suspects:
            ctx.storage.remove(f"{self.folder}/{ATTEMPTS}/{shard}")
        assert manifest is not None
        self._note(base, manifest)

    def entry(self) -> Entry:
        return total(Entry.from_json(self.lines[parent.id]["entry"]) for parent in self.parents)

    def pool(self) -> Pool:
        alive = {shard: found for line in self.lines.values() for shard, found in line["alive"].items()}
        return Pool(self.stage.namespace, self._content(), self._shards(), self.rows, alive)

    def _shards(self) -> list[Shard]:
        return [Shard(**shard) for parent in self.parents for shard in self.lines[parent.id]["shards"]]

    def _content(self) -> str:
        """Digest of the shards with alive children, and which are."""
        alive = [pair for parent in self.parents for pair in self.lines[parent.id]["alive"].items() if pair[1]]
        return digest({"namespace": self.stage.namespace, "alive": alive})

    def _note(self, base: str, manifest: Manifest) -> None:
        """What was made or found, where the rest of the run looks for it."""
        ctx, built, counts = self.ctx, self.built, self.built.counts
        built.base, built.manifest, built.content = base, manifest, manifest.content
        built.reused, counts.rebuilt = not counts.computed, bool(counts.computed)
        ctx.pools[self.node.name] = self.pool()


def _why(entry: Entry) -> str:
    if not entry.before:
        return "loosen the filters before it"
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in entry.lost.most_common(3))
    return f"they are {reasons}; give it others" if reasons else "give it others, or change its parameters"
