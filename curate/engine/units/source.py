"""Building a pool: import what is new, refuse keys that repeat across shards, publish the version."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from curate.core.contracts import Source
from curate.core.errors import InputError
from curate.core.hashing import digest
from curate.core.ledger import SET_ASIDE, Entry, total
from curate.core.nouns import Manifest, Shard, in_place, pool_base
from curate.core.pipeline import Node
from curate.core.storage import Storage, open_storage
from curate.engine.context import Built, Context, Pool
from curate.engine.preflight import record_path
from curate.engine.shuffle import buckets_for
from curate.engine.units.tasks import AmendTask, ImportTask, RepeatsTask, amend_shard, find_repeats, import_portion

READ_THREADS = 16


def build_source(ctx: Context, node: Node) -> None:
    stage = node.stage
    assert isinstance(stage, Source)
    began = time.monotonic()
    portions, inside = ctx.portions[node.name]
    tasks = [ImportTask(ctx.storage, stage, p, record_path(stage, p, inside), inside) for p in portions]
    with ctx.lease(node, f"pools/{stage.namespace}"):
        records, built_rows, lost = _import(ctx, node, tasks)
        shards, entry = _amend(ctx, node, records)
        entry = total([entry, *lost])
        _publish(ctx, node, shards, entry, built_rows, time.monotonic() - began)


def _publish(ctx: Context, node: Node, shards: list[Shard], entry: Entry, built_rows: int, seconds: float) -> None:
    stage = node.stage
    assert isinstance(stage, Source)
    fingerprint = digest({"namespace": stage.namespace, "shards": [shard.id for shard in shards]})
    pool = Pool(stage.namespace, fingerprint, shards)
    if not pool.rows:
        raise InputError(f"{node.name}: {stage.op} found no samples; check its path and patterns")
    ctx.pools[node.name] = pool
    places = [shard.tar for shard in shards if in_place(shard)]
    version = digest({"pool": fingerprint, "places": places}) if places else fingerprint
    built = Built(digest({"op": stage.op, "pool": "rows"}), pool_base(stage.namespace, version))
    built.reused = Manifest.load(ctx.storage, built.base) is not None
    ctx.built[node.name] = ctx.finish(
        node, built, "pool", entry, [shard.to_json() for shard in shards],
        rows=pool.rows, bytes=sum(shard.tar_bytes for shard in shards),
        seconds=round(seconds, 3), built_rows=built_rows,
    )  # fmt: skip
    if built.reused:
        ctx.progress.reused(node.name, pool.rows)


def _import(ctx: Context, node: Node, tasks: list[ImportTask]) -> tuple[list[dict[str, Any]], int, list[Entry]]:
    """Records of all portions in order (failed ones left out), rows imported now, ledger entries of what failed."""
    folder = f"pools/{node.stage.namespace}/portions"  # type: ignore[attr-defined]
    there = ctx.storage.list(folder)
    have = [i for i, task in enumerate(tasks) if task.record.removeprefix(folder + "/") in there]
    records: dict[int, dict[str, Any]] = {}
    with ThreadPoolExecutor(READ_THREADS) as threads:
        for i, data in zip(have, threads.map(ctx.storage.read, [tasks[i].record for i in have]), strict=True):
            records[i] = json.loads(data)
    missing = [i for i in range(len(tasks)) if i not in records]
    if missing:
        ctx.events.emit("build", stage=node.name, base=folder.removesuffix("/portions"), path="")
        ctx.events.flush()
    built, errors = 0, dict[int, str]()
    if missing:
        with ctx.progress.step(node.name, sum(tasks[i].portion.rows or 0 for i in missing)) as step:
            for outcome in ctx.run(import_portion, [tasks[i] for i in missing], node.stage):
                i = missing[outcome.index]
                if outcome.error is not None:
                    errors[i] = outcome.error
                    ctx.progress.say(f"  portion {i + 1} of {node.name} is set aside: {outcome.error}")
                    continue
                records[i] = outcome.value
                built += outcome.value["rows"]
                step.advance(outcome.value["rows"], sum(outcome.value["entry"]["rejected"].values()))
    lost = _lose(ctx, node, tasks, records, errors)
    for i, record in records.items():
        place = tasks[i].stage.tar(tasks[i].portion)
        if place is not None:  # a tar that stays in place is where the source is today
            record["shard"]["tar"] = open_storage(place).url
    return [records[i] for i in sorted(records)], built, lost


def _lose(
    ctx: Context, node: Node, tasks: list[ImportTask], records: dict[int, dict[str, Any]], errors: dict[int, str]
) -> list[Entry]:
    """Ledger entries of the portions that failed, judged against the rows of all of them once the others are there. One
    whose rows are not known counts as many as the others have on average."""
    there = [int(record["entry"]["before"]) for record in records.values()]
    mean = round(sum(there) / len(there)) if there else 1
    gone = {i: max(1, mean if tasks[i].portion.rows is None else tasks[i].portion.rows or 0) for i in sorted(errors)}
    rows = sum(there) + sum(gone.values())
    for i, count in gone.items():
        what = f"portion {i + 1} of {node.name}"
        ctx.lose(what, count, f"{what}: {errors[i]}", rows)
    return [Entry(count, Counter({SET_ASIDE: count}), 0) for count in gone.values()]


def _amend(ctx: Context, node: Node, records: list[dict[str, Any]]) -> tuple[list[Shard], Entry]:
    """Shards in which no live key repeats one of an earlier shard."""
    stage = node.stage
    assert isinstance(stage, Source)
    shards = [Shard(**record["shard"]) for record in records]
    entries = [Entry.from_json(record["entry"]) for record in records]
    if stage.unique_keys or len(shards) < 2:
        return shards, total(entries)
    known = known_repeats(ctx.storage, stage, shards)
    if known is None:
        known = _find_repeats(ctx, node, shards)
        ctx.storage.publish_bytes(_repeats_path(stage, shards), json.dumps(known, sort_keys=True).encode())
    for number, result in known.items():
        entries[int(number)] = Entry.from_json(result["entry"])
    return amended(shards, known), total(entries)


def _find_repeats(ctx: Context, node: Node, shards: list[Shard]) -> dict[str, Any]:
    stage = node.stage
    assert isinstance(stage, Source)
    buckets = buckets_for(sum(shard.rows for shard in shards))
    tasks = [RepeatsTask(ctx.storage, tuple(shards), b, buckets) for b in range(buckets)]
    rows: dict[int, list[int]] = {}
    for part in ctx.must(find_repeats, tasks, stage, node.name):
        for number, row in part:
            rows.setdefault(number, []).append(row)
    changed = sorted(rows)
    amends = [AmendTask(ctx.storage, stage.namespace, shards[i], tuple(rows[i])) for i in changed]
    return {str(i): result for i, result in zip(changed, ctx.must(amend_shard, amends, stage, node.name), strict=True)}


def _repeats_path(stage: Source, shards: list[Shard]) -> str:
    return f"pools/{stage.namespace}/repeats/{digest([shard.id for shard in shards])}.json"


def known_repeats(storage: Storage, stage: Source, shards: list[Shard]) -> dict[str, Any] | None:
    """Shard's place -> what became of it because it repeats keys of earlier shards; None before anybody has looked."""
    try:
        return dict(storage.read_json(_repeats_path(stage, shards)))
    except FileNotFoundError:
        return None


def amended(shards: list[Shard], known: dict[str, Any]) -> list[Shard]:
    """The shards with their amended tables; tars are where they are today."""
    changed = {int(number): result["shard"] for number, result in known.items()}
    return [
        replace(shard, id=changed[i]["id"], table=changed[i]["table"]) if i in changed else shard
        for i, shard in enumerate(shards)
    ]
