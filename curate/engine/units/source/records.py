"""Records of portions: which shard each became, and its ledger.

    pools/<namespace>/portions/<portion>.json           record of a portion
    pools/<namespace>/portions/<portion>.001.json       record of its next generation: a retry of its rows in error
    pools/<namespace>/portions/all/<portions>.parquet   records of all portions of a run

A run reads one file of many records, and the records of new portions.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns.manifest import reading
from curate.core.nouns.pools import Shard, lines_of, shards_of
from curate.core.store.storage import Storage
from curate.engine.units.common import dump, fetched
from curate.engine.units.source.fetches import fetches_path

ALL = "portions/all"
"""Folder of the files with records of many portions."""
BATCH_ROWS = 1 << 10
"""Records that are read at a time from such a file."""


@dataclass(frozen=True, slots=True)
class PortionRecord:
    """The shard that a portion became."""

    shard: Shard
    entry: str
    """JSON of the portion's ledger, which includes its earlier generations."""

    @property
    def ledger(self) -> Entry:
        return Entry.from_json(json.loads(self.entry))

    def dump(self) -> bytes:
        return dump({"shard": self.shard.to_json(), "entry": json.loads(self.entry)})


def portions_of(namespace: str) -> str:
    return f"pools/{namespace}/portions"


def generation_path(path: str, generation: int) -> str:
    """Path of the record of a later generation of a portion."""
    return f"{path.removesuffix('.json')}.{generation:03d}.json" if generation else path


def generations(existing: Iterable[str]) -> dict[str, int]:
    """Path of a portion's first record -> number of its last generation; `existing` are paths of records."""
    last: dict[str, int] = {}
    for path in existing:
        stem, _, number = path.removesuffix(".json").rpartition(".")
        if number.isdigit() and stem:
            last[f"{stem}.json"] = max(int(number), last.get(f"{stem}.json", 0))
    return last


@dataclass
class Records:
    """Records that exist, by path; and whether one file has all that were asked for."""

    found: dict[str, PortionRecord]
    whole: bool
    recent: list[str]
    """Paths of records that were read one by one: no file has them all."""
    file: str
    """The file of many records that was read, all of whose records were asked for; "" if none."""


def read_records(storage: Storage, namespace: str, first: Sequence[str]) -> tuple[list[list[str]], Records]:
    """(paths of the records of each portion, by generation; their records), for portions given by the paths of their
    first records. Takes a listing, a read of one file with many records, and a read for each other record."""
    base = portions_of(namespace)
    sizes = storage.list(base)

    def exists(path: str) -> bool:
        return path.removeprefix(f"{base}/") in sizes

    last = generations(sizes)
    latest = (last.get(path.removeprefix(f"{base}/"), 0) for path in first)
    paths = [[generation_path(path, n) for n in range(number + 1)] for path, number in zip(first, latest, strict=True)]
    flat = [path for of_portion in paths for path in of_portion]
    whole = all_path(namespace, flat)
    files = [file for file in sizes if f"{base}/{file}".startswith(f"pools/{namespace}/{ALL}/")]
    largest = [f"{base}/{file}" for file in sorted(files, key=lambda file: sizes[file])[-1:]]
    found: dict[str, PortionRecord] = {}
    read = ""
    for file in [whole] if exists(whole) else largest:
        found = read_all(storage, file)
        others = found.keys() - set(flat)
        for path in others:
            del found[path]
        if not all(exists(path) for path in found):  # a record was removed: the new import may give another shard
            storage.remove(file)
            found, whole = {}, ""
        elif not others:
            read = file
    rest = [path for path in dict.fromkeys(flat) if exists(path) and path not in found]
    found |= zip(rest, fetched(lambda path: read_record(storage, path), rest), strict=True)
    return paths, Records(found, exists(whole), rest if read else list(found), read)


def read_record(storage: Storage, path: str) -> PortionRecord:
    with reading(storage, path, "record of a portion", "remove it and rerun the recipe"):
        value = storage.read_json(path)
        return PortionRecord(Shard(**value["shard"]), json.dumps(value["entry"], sort_keys=True))


def announced(storage: Storage, path: str) -> tuple[str, ...]:
    """Files that attempts have named before they published them, since the portion has no record; `path` is in the
    folder `pending`."""
    try:
        return tuple(storage.read_json(path)["files"])
    except FileNotFoundError:
        return ()


def clear(storage: Storage, path: str, record: PortionRecord, files: Iterable[str]) -> None:
    """Remove the files that attempts have announced, except for those of the record, and the announcement."""
    for file in files:
        if file not in (record.shard.tar, record.shard.table):
            storage.remove_file(file)
    storage.remove_file(path)


def read_all(storage: Storage, path: str) -> dict[str, PortionRecord]:
    """Path -> record, from a file of many records."""
    with reading(storage, path, "list of imported portions", "remove it and rerun the recipe"):
        found: dict[str, PortionRecord] = {}
        with storage.open(path) as file:
            for batch in pq.ParquetFile(file).iter_batches(BATCH_ROWS, use_threads=False):
                lines = pa.Table.from_batches([batch])
                paths, entries = lines.column("record").to_pylist(), lines.column("entry").to_pylist()
                for record, shard, entry in zip(paths, shards_of(lines), entries, strict=True):
                    found[record] = PortionRecord(shard, entry)
        return found


def read_fetch(storage: Storage, namespace: str, shard: str, key: str) -> dict[str, Any] | None:
    """The line about a sample's last fetch, from the tables of its shard's portion. Takes a listing, a read of two
    columns for all shards, in the largest files first, and a read for each generation."""
    base, line = f"pools/{namespace}/{ALL}", None
    files = storage.list(base)
    for file in sorted(files, key=lambda name: files[name], reverse=True):
        known = storage.read_table(f"{base}/{file}", columns=["id", "record"])
        paths = known.filter(pc.equal(known.column("id"), shard)).column("record").to_pylist()
        if not paths:  # a file of other parameters, or of another list
            continue
        for path in _with_later(storage, paths[0]):
            table = storage.read_table(fetches_path(path))
            line = next(iter(table.filter(pc.equal(table.column("key"), key)).to_pylist()), line)
        break
    return line


def _with_later(storage: Storage, path: str) -> Iterator[str]:
    """The record's path, and those of later generations up to the first without a table of fetches."""
    number = generations([path])
    for generation in itertools.count(*number.values()):
        path = generation_path(next(iter(number), path), generation)
        if not storage.exists(fetches_path(path)):
            return
        yield path


def publish_all(storage: Storage, file: str, found: Mapping[str, PortionRecord], paths: Sequence[str]) -> None:
    """Publish one file with the records of these paths."""
    lines = lines_of([found[path].shard for path in paths])
    lines = lines.append_column("record", pa.array(list(paths)))
    lines = lines.append_column("entry", pa.array([found[path].entry for path in paths]))
    storage.publish_table(file, lines)


def all_path(namespace: str, paths: Sequence[str]) -> str:
    return f"pools/{namespace}/{ALL}/{digest(list(paths))}.parquet"
