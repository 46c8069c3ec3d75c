"""Building columns: which shards lack what, one pass for all connected Maps, and what to do when a shard goes wrong."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curate.core.contracts import Map, Resources
from curate.core.ledger import ERROR_PREFIX, SET_ASIDE, Entry, total
from curate.core.nouns import Shard
from curate.core.pipeline import Node
from curate.core.rows import ColumnsRef, Rows
from curate.engine import segments
from curate.engine.backend import How, Outcome
from curate.engine.context import Built, Context
from curate.engine.passes import ATTEMPTS, Member, PassTask, run_pass
from curate.engine.segments import read_ledger

FOOTER_THREADS = 16
SPREAD = 4
"""Tasks per worker at least, where there is work for so many."""


def prepare(ctx: Context, node: Node) -> Built:
    fingerprint = ctx.fingerprint(node)
    path = f"columns/{node.stage.op}/{fingerprint}"
    return Built(fingerprint, f"{path}/versions/{ctx.pool(node).fingerprint}", path)


def member_of(ctx: Context, node: Node) -> Member:
    assert isinstance(node.stage, Map)
    return Member(node.name, node.stage, ctx.built[node.name].path, ctx.rows(node), ctx.ports(node))


class MapBuild:
    """One pass of several Maps over a pool."""

    def __init__(self, ctx: Context, nodes: list[Node]) -> None:
        self.ctx, self.nodes = ctx, nodes
        self.members = {node.name: member_of(ctx, node) for node in nodes}
        self.pool = ctx.pool(nodes[0])
        self.whole_rows = ctx.whole_pool_rows(nodes[0])
        self.results: dict[str, dict[str, dict[str, Any]]] = {node.name: {} for node in nodes}
        """Stage -> shard id -> what its task or its footer says."""
        self.lost: dict[str, str] = {}
        """Shard id -> why it was set aside."""
        self.fresh: dict[str, list[dict[str, Any]]] = {node.name: [] for node in nodes}

    def build(self) -> None:
        began = time.monotonic()
        work, suspects, poison = self._survey()
        rows = sum(shard.rows for shard, _ in work)
        with self.ctx.progress.step(" + ".join(self.members), rows) as step:
            self._step = step
            calm = [item for item in work if item[0].id not in suspects]
            self._work_off(self._tasks(calm, poison))
            for item in (item for item in work if item[0].id in suspects):
                self._suspicious(item, poison)
        self._commit(time.monotonic() - began)

    # --- what is there ---

    def _survey(self) -> tuple[list[tuple[Shard, frozenset[str]]], set[str], dict[str, dict[str, list[int]]]]:
        """Work to do; shards that were under way when an earlier run died; rows known to kill."""
        storage = self.ctx.storage
        found = {name: storage.list(member.path) for name, member in self.members.items()}
        have = [(n, s) for n, files in found.items() for s in self.pool.shards if f"{s.id}.parquet" in files]
        with ThreadPoolExecutor(FOOTER_THREADS) as threads:
            for (name, shard), result in zip(have, threads.map(self._footer, have), strict=True):
                if result is not None:
                    self.results[name][shard.id] = result
                    self._lose(name, result)
        work = []
        for shard in self.pool.shards:
            lacking = frozenset(name for name in self.members if shard.id not in self.results[name])
            if lacking:
                work.append((shard, lacking))
        return work, *self._traces(found)

    def _traces(self, found: dict[str, dict[str, int]]) -> tuple[set[str], dict[str, dict[str, list[int]]]]:
        """What earlier runs left beside the columns: marks of shards that were under way, rows that kill."""
        storage = self.ctx.storage
        suspects: set[str] = set()
        poison: dict[str, dict[str, list[int]]] = {}
        for name, files in found.items():
            for file in files:
                folder, _, item = file.partition("/")
                if folder == ATTEMPTS:
                    suspects.add(item)
                elif folder == "poison":
                    rows = storage.read_json(f"{self.members[name].path}/{file}")
                    poison.setdefault(item.removesuffix(".json"), {})[name] = rows
        return suspects, poison

    def _tidy(self, path: str, files: dict[str, int]) -> None:
        """Remove marks and segments of shards that are complete: a kill just after the last column leaves them."""
        for file in files:
            folder, _, item = file.partition("/")
            if folder in (ATTEMPTS, segments.FOLDER) and f"{item.split('/')[0]}.parquet" in files:
                self.ctx.storage.remove(f"{path}/{file}")

    def _footer(self, item: tuple[str, Shard]) -> dict[str, Any] | None:
        """What the task that wrote the columns says of them; None where it is damaged: made again."""
        name, shard = item
        try:
            with self.ctx.storage.open(f"{self.members[name].path}/{shard.id}.parquet") as file:
                return read_ledger(pq.read_schema(file))
        except (pa.ArrowInvalid, KeyError, TypeError, ValueError):
            return None

    def _tasks(
        self, work: list[tuple[Shard, frozenset[str]]], poison: dict[str, dict[str, list[int]]]
    ) -> list[PassTask]:
        slots = self.ctx.backend.slots(self.resources())
        limit = min(self.ctx.options.task_rows, max(1, sum(s.rows for s, _ in work) // (SPREAD * slots)))
        tasks: list[list[tuple[Shard, frozenset[str]]]] = []
        rows = 0
        for item in work:
            if not tasks or rows + item[0].rows > limit:
                tasks.append([])
                rows = 0
            tasks[-1].append(item)
            rows += item[0].rows
        return [self._task(tuple(items), poison) for items in tasks]

    def _task(
        self, work: tuple[tuple[Shard, frozenset[str]], ...], poison: dict[str, dict[str, list[int]]]
    ) -> PassTask:
        mine = {shard.id: poison[shard.id] for shard, _ in work if shard.id in poison}
        mark = self.ctx.backend.name == "local"
        members = tuple(self.members.values())
        return PassTask(self.ctx.storage, members, work, mine, self.ctx.options.segment_seconds, mark)

    def resources(self) -> Resources:
        each = [member.stage.resources() for member in self.members.values()]
        return Resources(max(r.cpus for r in each), max(r.gpus for r in each), max(r.memory_bytes for r in each))

    # --- work and failure ---

    def _run(self, tasks: list[PassTask], *, isolated: bool = False) -> Iterator[tuple[PassTask, Outcome]]:
        for outcome in self.ctx.run_with(run_pass, tasks, self.resources(), How(isolated=isolated)):
            yield tasks[outcome.index], outcome

    def _work_off(self, tasks: list[PassTask], *, isolated: bool = False) -> None:
        failed = []
        for task, outcome in self._run(tasks, isolated=isolated):
            if outcome.error is None:
                self._accept(task, outcome.value)
            else:
                failed.append((task, outcome))
        for task, outcome in failed:
            if len(task.work) > 1:
                self._work_off([replace(task, work=(item,)) for item in task.work], isolated=outcome.crashed)
            elif outcome.crashed:
                self._suspicious(task.work[0], task.poison)
            else:
                self._set_aside(task.work[0][0], str(outcome.error))

    def _accept(self, task: PassTask, results: list[dict[str, Any]]) -> None:
        for result in results:
            self.results[result["stage"]][result["shard"]] = result
            self.fresh[result["stage"]].append(result)
            self._step.advance(0, sum(result["entry"]["rejected"].values()), result["stage"])
            self._lose(result["stage"], result)
        self._step.advance(sum(shard.rows for shard, _ in task.work))

    def _lose(self, name: str, result: dict[str, Any]) -> None:
        """Count the rows of a shard that failed one by one, computed now or by a run before."""
        entry = Entry.from_json(result["entry"])
        if entry.errors():
            reason = next(reason for reason in entry.rejected if reason.startswith(ERROR_PREFIX))
            said = result.get("messages", {}).get(reason, reason)
            self.ctx.lose(name, self.ctx.lost.get(name, 0) + entry.errors(), f"{name}: {said}", self.whole_rows)

    def _suspicious(self, item: tuple[Shard, frozenset[str]], poison: dict[str, dict[str, list[int]]]) -> None:
        """A shard whose task died with its process: find the rows that do it, refuse them, and try once more."""
        shard, _ = item
        outcome = self._alone(self._task((item,), poison))
        if outcome is not None and outcome.crashed:
            known = dict(poison.get(shard.id, {}))
            for row in self._killers(self._task((item,), poison)):
                name = self._guilty(self._task((item,), poison), row)
                known[name] = sorted({*known.get(name, []), row})
            for name, rows in known.items():
                self.ctx.storage.publish_bytes(f"{self.members[name].path}/poison/{shard.id}.json", str(rows).encode())
            self.ctx.events.emit("poison", shard=shard.id, rows=known)
            outcome = self._alone(self._task((item,), poison | {shard.id: known}))
        if outcome is not None:
            self._set_aside(shard, str(outcome.error))

    def _alone(self, task: PassTask) -> Outcome | None:
        """Run one task in a process that may die; None when all went well."""
        [(_, outcome)] = self._run([task], isolated=True)
        if outcome.error is not None:
            return outcome
        self._accept(task, outcome.value)
        return None

    def _killers(self, task: PassTask) -> list[int]:
        """Rows that kill a process on their own, by halving."""
        ranges, rows = [(0, task.work[0][0].rows)], []
        while ranges:
            halves = [half for a, b in ranges for half in ((a, (a + b) // 2), ((a + b) // 2, b)) if half[0] < half[1]]
            probes = [replace(task, probe=half, mark=False) for half in halves]
            bad = [
                probe.probe for probe, outcome in self._run(probes, isolated=True) if outcome.crashed and probe.probe
            ]
            rows += [a for a, b in bad if b - a == 1]
            ranges = sorted((a, b) for a, b in bad if b - a > 1)
        return sorted(rows)

    def _guilty(self, task: PassTask, row: int) -> str:
        """The first stage of the pass that dies of the row."""
        names = [name for name in self.members if name in task.work[0][1]]
        for count in range(1, len(names)):
            work = ((task.work[0][0], frozenset(names[:count])),)
            probe = replace(task, work=work, probe=(row, row + 1), mark=False)
            if any(outcome.crashed for _, outcome in self._run([probe], isolated=True)):
                return names[count - 1]
        return names[-1]

    def _set_aside(self, shard: Shard, error: str) -> None:
        self.lost[shard.id] = error
        self.ctx.events.emit("shard_set_aside", shard=shard.id, tar=shard.tar, error=error)
        self.ctx.progress.say(f"  shard {shard.id} ({shard.tar}) is set aside: {error}")
        self.ctx.set_aside_rows += shard.rows
        self.ctx.lose(f"shard {shard.id}", shard.rows, f"shard {shard.id}: {error}", self.whole_rows)
        self._step.advance(shard.rows, shard.rows)

    # --- committing ---

    def _commit(self, wall: float) -> None:
        ctx, pool = self.ctx, self.pool
        entries = {n: [Entry.from_json(r["entry"]) for r in results.values()] for n, results in self.results.items()}
        if self.lost:
            lost_shards = [shard for shard in pool.shards if shard.id in self.lost]
            pool = pool.without(list(self.lost))
            ctx.pools[ctx.pipeline.pool_of(self.nodes[0].name)] = pool
            for node in self.nodes:
                entries[node.name] = [
                    Entry.from_json(r["entry"]) for s, r in self.results[node.name].items() if s not in self.lost
                ]
                entries[node.name] += [self._lost_entry(node, shard) for shard in lost_shards]
        busy = sum(r["seconds"] for results in self.fresh.values() for r in results) or 1.0
        for node in self.nodes:
            built = ctx.built[node.name]
            built.base = f"{built.path}/versions/{pool.fingerprint}"
            fresh = self.fresh[node.name]
            sizes = ctx.storage.list(built.path)
            self._tidy(built.path, sizes)
            shards = [self._line(node.name, shard, sizes) for shard in pool.shards]
            share = wall * sum(r["seconds"] for r in fresh) / busy
            ctx.finish(
                node, built, "columns", total(entries[node.name]), shards,
                rows=pool.rows, bytes=sum(s["bytes"] for s in shards), seconds=round(share, 3),
                built_rows=sum(r["rows"] for r in fresh),
                extra={"pass": list(self.members), "set_aside": self.lost},
            )  # fmt: skip

    def _lost_entry(self, node: Node, shard: Shard) -> Entry:
        """A shard that was set aside: its rows end where they were alive last."""
        inside = {member.path for member in self.members.values()}
        rows = self.members[node.name].rows
        if any(ref.path in inside for ref in rows.columns):
            return Entry()
        outside: tuple[ColumnsRef, ...] = rows.columns
        alive = int(np.sum(Rows(rows.storage, outside, rows.selection).alive(shard)))
        return Entry(alive, Counter({SET_ASIDE: alive}), 0)

    def _line(self, name: str, shard: Shard, sizes: dict[str, int]) -> dict[str, Any]:
        file = f"{shard.id}.parquet"
        return {"id": shard.id, "rows": shard.rows, "file": f"{self.ctx.built[name].path}/{file}", "bytes": sizes[file]}


def passes(ctx: Context, maps: list[Node]) -> list[Node]:
    """Maps that can go in one pass: of one pool, with everything else upstream built. Empty when none can go yet."""
    for pool in ctx.pools:
        chosen: list[Node] = []
        names: set[str] = set()
        for node in maps:
            if ctx.pipeline.pool_of(node.name) == pool and all(
                up in ctx.built or (up in names and up in node.inputs) for up in node.upstream
            ):
                chosen.append(node)
                names.add(node.name)
        if chosen:
            return chosen
    return []
