"""A Source: each portion becomes a shard; repeated keys are rejected; the version lists the shards.

    pools/<namespace>/portions/<portion>.json           record: the shard that a portion became
    pools/<namespace>/portions/all/<portions>.parquet   records of all portions of a run
    pools/<namespace>/repeats/<shards>.parquet          amended shards: those with keys of earlier shards
    pools/<namespace>/keys/<shards>/                    the index of keys

A run reads one file of many records, and the records of new portions.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from curate.codec.tars import TarWriter, read_spans
from curate.core.contracts import Incoming, Portion, Source
from curate.core.errors import InputError
from curate.core.hashing import digest, make_key, rank_below, ranks
from curate.core.ledger import SET_ASIDE, Entry
from curate.core.nouns.manifest import Manifest, reading
from curate.core.nouns.pools import POOL_SCHEMA, Shard, in_place, lines_of, pool_base, read_pool, shards_of
from curate.core.recipe.pipeline import Node
from curate.core.store.storage import Storage, open_storage
from curate.engine.context import Context
from curate.engine.preflight import record_path
from curate.engine.state import Built, Pool
from curate.engine.units import keys, shuffle
from curate.engine.units.common import content_id, dump, fetched, probed
from curate.engine.workers import beat

ALL = "portions/all"
"""Folder of the files with records of many portions."""
REPEATED = "duplicate_key"
BEAT_ROWS = 64
"""Samples between two reports to the beat."""


@dataclass(frozen=True, slots=True)
class PortionRecord:
    """The shard that a portion became."""

    shard: Shard
    entry: str
    """JSON of its ledger."""


def build_source(ctx: Context, node: Node) -> None:
    stage = node.stage
    assert isinstance(stage, Source)
    began = time.monotonic()
    with ctx.lease(node, f"pools/{stage.namespace}"):
        shards, entry, built_rows = _import(ctx, node, stage)
        if not sum(shard.rows for shard in shards):
            raise InputError(f"{node.name}: {stage.op} found no samples; check its path and patterns")
        folder = keys.folder_of(stage.namespace, shards)
        shards, entry = _without_repeats(ctx, node, stage, folder, shards, entry)
        version, fingerprint = version_of(stage, shards)
        ctx.pools[node.name] = pool = Pool(stage.namespace, fingerprint, shards)
        built = ctx.built[node.name] = Built(
            digest({"op": stage.op, "pool": "rows"}), pool_base(stage.namespace, version)
        )
        built.manifest = Manifest.load(ctx.storage, built.base)
        built.reused = built.manifest is not None
        if built.manifest is not None:
            built.content = built.manifest.content or built.fingerprint
            ctx.progress.reused(node.name, pool.rows)
            return
        index = keys.build_index(ctx, node, folder, shards)
        keys.tidy_index(ctx.storage, folder)
        ctx.finish(
            node, built, "pool", entry, lines_of(shards),
            rows=pool.rows, bytes=sum(shard.tar_bytes for shard in shards),
            seconds=round(time.monotonic() - began, 3), built_rows=built_rows, extra={"keys": index},
        )  # fmt: skip


def version_of(stage: Source, shards: Sequence[Shard]) -> tuple[str, str]:
    """Version and fingerprint of the pool of some shards; only the version depends on the places of tars outside the
    workspace."""
    fingerprint = digest({"namespace": stage.namespace, "shards": [shard.id for shard in shards]})
    places = [shard.tar for shard in shards if in_place(shard)]
    return digest({"pool": fingerprint, "places": places}) if places else fingerprint, fingerprint


# --- importing --------------------------------------------------------------------------------------------------------


def _import(ctx: Context, node: Node, stage: Source) -> tuple[list[Shard], Entry, int]:
    """Shards of all portions in order, except for failed ones; their ledger; and the rows imported by this run."""
    portions, inside = ctx.portions[node.name]
    paths = [record_path(stage, portion, inside) for portion in portions]
    found, whole = read_records(ctx.storage, stage.namespace, paths)
    records = {i: found[path] for i, path in enumerate(paths) if path in found}
    missing = [i for i in range(len(paths)) if i not in records]
    if missing:
        ctx.events.emit("build", stage=node.name, base=f"pools/{stage.namespace}", path="")
        ctx.events.flush()
    built, errors = 0, dict[int, str]()
    tasks = (ImportTask(ctx.storage, stage, node.name, portions[i], paths[i], inside) for i in missing)
    with ctx.progress.step(node.name, sum(portions[i].rows or 0 for i in missing)) as step:
        for outcome in ctx.run(import_portion, tasks, stage, label=node.name):
            i = missing[outcome.index]
            if outcome.error is not None:
                errors[i] = outcome.error
                ctx.progress.say(f"  portion {i + 1} of {node.name} is set aside: {outcome.error}")
                continue
            records[i] = outcome.value
            rejected = Entry.from_json(json.loads(outcome.value.entry)).rejected.total()
            built += outcome.value.shard.rows
            step.advance(outcome.value.shard.rows, rejected)
    if not whole and not errors:
        lines = lines_of([records[i].shard for i in sorted(records)])
        lines = lines.append_column("record", pa.array([paths[i] for i in sorted(records)]))
        lines = lines.append_column("entry", pa.array([records[i].entry for i in sorted(records)]))
        ctx.storage.publish_table(_all_path(stage.namespace, paths), lines)
    entry = Entry()
    for record in records.values():
        entry += Entry.from_json(json.loads(record.entry))
    entry = sum(_lost_portions(ctx, node, portions, entry.before, len(records), errors), entry)
    return [_with_place(stage, portions[i], records[i].shard) for i in sorted(records)], entry, built


def _with_place(stage: Source, portion: Portion, shard: Shard) -> Shard:
    """The shard; a tar outside the workspace gets the source's present location."""
    place = stage.tar(portion)
    return shard if place is None else replace(shard, tar=open_storage(place).url)


def _lost_portions(
    ctx: Context, node: Node, portions: Sequence[Portion], rows: int, imported: int, errors: Mapping[int, str]
) -> Iterator[Entry]:
    """Ledger entries of failed portions, counted against the failure budget. A portion with unknown rows counts as the
    average of the others."""
    mean = round(rows / imported) if imported else 1
    expected = {i: portions[i].rows for i in sorted(errors)}
    gone = {i: max(1, mean if count is None else count) for i, count in expected.items()}
    for i, count in gone.items():
        what = f"portion {i + 1} of {node.name}"
        ctx.lose(what, count, f"{what}: {errors[i]}", rows + sum(gone.values()))
        yield Entry(count, Counter({SET_ASIDE: count}), 0)


def read_records(storage: Storage, namespace: str, paths: Sequence[str]) -> tuple[dict[str, PortionRecord], bool]:
    """Path -> record, for imported portions; and whether one file has all of them. Takes a listing, a read of one file
    with many records, and a read for each other record."""
    base = f"pools/{namespace}"
    there = {f"{base}/portions/{file}": size for file, size in storage.list(f"{base}/portions").items()}
    whole, wanted = _all_path(namespace, paths), set(paths)
    files = [path for path in there if path.startswith(f"{base}/{ALL}/")]
    found: dict[str, PortionRecord] = {}
    for file in [whole] if whole in there else sorted(files, key=lambda path: there[path])[-1:]:
        found = {path: record for path, record in read_all(storage, file).items() if path in wanted}
        if not all(path in there for path in found):  # a record was removed: the new import may give another shard
            storage.remove(file)
            found, whole = {}, ""
    rest = [path for path in dict.fromkeys(paths) if path in there and path not in found]
    found |= zip(rest, fetched(lambda path: read_record(storage, path), rest), strict=True)
    return found, whole in there


def read_record(storage: Storage, path: str) -> PortionRecord:
    with reading(storage, path, "record of a portion", "remove it and rerun the recipe"):
        value = storage.read_json(path)
        return PortionRecord(Shard(**value["shard"]), json.dumps(value["entry"], sort_keys=True))


def read_all(storage: Storage, path: str) -> dict[str, PortionRecord]:
    """Path -> record, from a file of many records."""
    with reading(storage, path, "list of imported portions", "remove it and rerun the recipe"):
        lines = storage.read_table(path)
        paths, entries = lines.column("record").to_pylist(), lines.column("entry").to_pylist()
        found = zip(paths, shards_of(lines), entries, strict=True)
        return {record: PortionRecord(shard, entry) for record, shard, entry in found}


def _all_path(namespace: str, paths: Sequence[str]) -> str:
    return f"pools/{namespace}/{ALL}/{digest(list(paths))}.parquet"


# --- repeated keys ----------------------------------------------------------------------------------------------------


def _without_repeats(
    ctx: Context, node: Node, stage: Source, folder: str, shards: list[Shard], entry: Entry
) -> tuple[list[Shard], Entry]:
    """The shards, amended so that no live key repeats an earlier one, and the ledger with the repeated keys."""
    if stage.unique_keys or len(shards) < 2:
        return shards, entry
    known = known_repeats(ctx.storage, stage.namespace, shards)
    if known is None:
        keys.build_index(ctx, node, folder, shards, with_repeats=True)
        tasks = (
            AmendTask(ctx.storage, node.name, stage.namespace, first, tuple(shards[first:stop]), pieces)
            for (first, stop), pieces in keys.repeats(ctx, folder, shards)
        )
        known = {
            number: (identity, rows)
            for _, found in ctx.each(amend_shards, tasks, stage, node.name)
            for number, identity, rows in found
        }
        lines = [{"shard": number, "id": known[number][0], "rows": known[number][1]} for number in sorted(known)]
        table = pa.Table.from_pylist(lines, schema=_REPEATS)
        ctx.storage.publish_table(_repeats_path(stage.namespace, shards), table)
        keys.tidy_index(ctx.storage, folder)
    rows = sum(rows for _, rows in known.values())
    return amended(shards, known), entry + Entry(0, Counter({REPEATED: rows} if rows else {}), -rows)


Repeats = Mapping[int, tuple[str, int]]
"""Place of a shard -> its id once repeated keys are rejected, and their number."""
_REPEATS = pa.schema([("shard", pa.int32()), ("id", pa.string()), ("rows", pa.int64())])


def _repeats_path(namespace: str, shards: Sequence[Shard]) -> str:
    return f"pools/{namespace}/repeats/{digest([shard.id for shard in shards])}.parquet"


def known_repeats(storage: Storage, namespace: str, shards: Sequence[Shard]) -> Repeats | None:
    """The shards that repeat keys of earlier shards; None if no run has checked them."""
    path = _repeats_path(namespace, shards)
    return read_repeats(storage, path) if storage.exists(path) else None


def read_repeats(storage: Storage, path: str) -> Repeats:
    with reading(storage, path, "list of repeated keys", "remove it and rerun the recipe"):
        number, identity, rows = (column.to_pylist() for column in storage.read_table(path).columns)
        return {n: (i, r) for n, i, r in zip(number, identity, rows, strict=True)}


def amended(shards: Sequence[Shard], known: Repeats) -> list[Shard]:
    """The shards with their amended tables."""
    return [
        replace(shard, id=known[i][0], table=f"{shard.table.rpartition('/')[0]}/{known[i][0]}.parquet")
        if i in known
        else shard
        for i, shard in enumerate(shards)
    ]


# --- what workers do --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImportTask:
    storage: Storage
    stage: Source
    name: str
    portion: Portion
    record: str
    """Path of the portion's record."""
    inside: float = 1.0
    """Share of the portion's rows to import, chosen by rank; below 1 in a canary run."""

    def read(self) -> Iterator[Incoming]:
        began, rows = time.monotonic(), 0
        for item in self.stage.read(self.portion):
            key = make_key(self.stage.namespace, item.source_id)
            if self.inside >= 1.0 or rank_below(ranks(0, [key]), self.inside)[0]:
                yield item
            rows += 1
            if rows == BEAT_ROWS:
                beat.current().done(self.name, rows, time.monotonic() - began)
                began, rows = time.monotonic(), 0
        beat.current().done(self.name, rows, time.monotonic() - began)


def import_portion(task: ImportTask) -> PortionRecord:
    """Publish the shard of one portion: its tar (unless it stays in place), then its table, then its record."""
    beat.current().doing(task.name)
    place = task.stage.tar(task.portion)
    base = f"pools/{task.stage.namespace}/shards"
    if place is None:
        shard, table = _copy_in(task, base)
    else:
        shard, table = _index_in_place(task, base, place)
    rejected = Counter(reason for reason in table.column("reject").to_pylist() if reason)
    entry = Entry(shard.rows, rejected, shard.rows - sum(rejected.values()))
    record = {"shard": shard.to_json(), "entry": entry.to_json()}
    task.storage.publish_bytes(task.record, dump(record))
    return PortionRecord(shard, json.dumps(record["entry"], sort_keys=True))


def _copy_in(task: ImportTask, base: str) -> tuple[Shard, pa.Table]:
    rows: list[dict[str, Any]] = []
    with task.storage.scratch(base) as path:
        with open(path, "wb") as file, TarWriter(file) as tar:
            for incoming in task.read():
                row = _row(task.stage, incoming, incoming.data)
                if incoming.data is not None:
                    row["offset"] = tar.add(f"{row['key']}.{row['ext'] or 'bin'}", incoming.data)
                    row["size"] = len(incoming.data)
                rows.append(row)
        table = _table(rows)
        identity = content_id(table)
        size = path.stat().st_size
        shard = Shard(identity, len(rows), f"{base}/{identity}.tar", size, f"{base}/{identity}.parquet")
        task.storage.adopt(path, shard.tar)
    task.storage.publish_table(shard.table, table)
    return shard, table


def _index_in_place(task: ImportTask, base: str, place: str) -> tuple[Shard, pa.Table]:
    source = open_storage(place)
    size = int(source.fs.size(source.root))
    found = list(task.read())
    spans = [(item.offset, item.size) for item in found if item.offset is not None and item.size is not None]
    data = read_spans(source.fs, source.root, spans, size)
    rows = []
    for item in found:
        held = item.offset is not None and item.size is not None
        row = _row(task.stage, item, next(data) if held else None)
        row["offset"], row["size"] = (item.offset, item.size) if held else (None, None)
        rows.append(row)
    table = _table(rows)
    identity = content_id(table)
    shard = Shard(identity, len(rows), source.url, size, f"{base}/{identity}.parquet")
    task.storage.publish_table(shard.table, table)
    return shard, table


def _row(stage: Source, item: Incoming, data: bytes | None) -> dict[str, Any]:
    key = make_key(stage.namespace, item.source_id)
    row: dict[str, Any] = {
        "key": key,
        "source_id": item.source_id.encode("utf-8", "replace").decode(),
        "name": item.name or key,
        "ext": item.ext,
        "caption": item.caption,
        "url": item.url,
        "meta": json.dumps(item.meta, sort_keys=True, ensure_ascii=False),
        "reject": item.reject,
        "sha256": hashlib.sha256(data).hexdigest() if data is not None else None,
    }
    row |= dict.fromkeys(("offset", "size", "parent", "root", "span", "parent_row"))
    return row | probed(data)


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """The pool table; a key of an earlier live row is rejected, as across shards."""
    seen: set[str] = set()
    for row in rows:
        if row["reject"] is None and row["key"] in seen:
            row["reject"] = REPEATED
        elif row["reject"] is None:
            seen.add(row["key"])
    return pa.Table.from_pylist(rows, schema=POOL_SCHEMA)


@dataclass(frozen=True)
class AmendTask:
    storage: Storage
    name: str
    namespace: str
    first: int
    """Place of the first shard in the pool's list."""
    shards: tuple[Shard, ...]
    repeats: tuple[shuffle.Piece, ...]
    """Pieces with the places of repeated keys."""


def amend_shards(task: AmendTask) -> list[tuple[int, str, int]]:
    """Publish tables in which repeated keys are rejected. Returns each shard's place, new id and number of rejects."""
    found = []
    for number, rows in keys.read_repeats(task.storage, task.repeats).items():
        with beat.working(task.name) as work:
            identity = _amend(task.storage, task.namespace, task.shards[number - task.first], rows)
            found.append((number, identity, len(rows)))
            work.rows = len(rows)
    return found


def _amend(storage: Storage, namespace: str, shard: Shard, rows: Sequence[int]) -> str:
    """Publish a shard's table with some live rows rejected; returns the new id."""
    table = read_pool(storage, shard.table)
    reasons = table.column("reject").to_pylist()
    for row in rows:
        reasons[row] = REPEATED
    place = table.schema.get_field_index("reject")
    table = table.set_column(place, POOL_SCHEMA.field("reject"), pa.array(reasons, pa.string()))
    identity = content_id(table)
    path = f"pools/{namespace}/shards/{identity}.parquet"
    if not storage.exists(path):  # its name is its content
        storage.publish_table(path, table)
    return identity
