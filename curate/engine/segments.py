"""Segments: what a costly Map has done inside a shard, so that a kill loses at most a minute of work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from curate.core.ledger import Entry
from curate.core.nouns import Shard
from curate.core.storage import Storage
from curate.engine.batches import Produced

if TYPE_CHECKING:
    from curate.engine.passes import Member


FOLDER = "segments"


def dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def read_ledger(schema: pa.Schema) -> dict[str, Any]:
    return json.loads(schema.metadata[b"ledger"])  # type: ignore[no-any-return]


def _folder(shard: Shard, member: Member) -> str:
    return f"{member.path}/{FOLDER}/{shard.id}"


def save(
    storage: Storage,
    shard: Shard,
    members: list[Member],
    done: dict[str, list[Produced]],
    start: int,
    stop: int,
) -> None:
    """Publish rows [start, stop) of every member of the pass."""
    for member in members:
        table, entry, row = [], Entry(), 0
        for part in done[member.name]:
            if row >= start:
                table.append(part.table)
                entry += part.entry
            row += part.table.num_rows
        joined = pa.concat_tables(table).replace_schema_metadata({"ledger": dump(entry.to_json())})
        storage.publish_table(f"{_folder(shard, member)}/{start:09d}-{stop:09d}.parquet", joined)


def restore(
    storage: Storage, shard: Shard, members: list[Member], empty: dict[str, list[Produced]]
) -> tuple[int, dict[str, list[Produced]]]:
    """(row to go on from, what lies before it) where all members of the pass have the same segments."""
    spans = [set(storage.list(_folder(shard, member))) for member in members]
    common = sorted(set.intersection(*spans)) if spans else []
    row, files = 0, []
    for name in common:
        start, stop = (int(part) for part in name.removesuffix(".parquet").split("-"))
        if start == row:
            row, files = stop, [*files, name]
    if not files:
        return 0, empty
    return row, {m.name: [_load(storage, f"{_folder(shard, m)}/{name}") for name in files] for m in members}


def _load(storage: Storage, path: str) -> Produced:
    table = storage.read_table(path)
    entry = Entry.from_json(json.loads(table.schema.metadata[b"ledger"]))
    return Produced(table.replace_schema_metadata(None), entry)


def drop(storage: Storage, shard: Shard, member: Member) -> None:
    storage.remove(_folder(shard, member))
