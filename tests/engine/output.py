"""Outputs of a run, independent of how the pool was cut into shards."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.contracts import Collect, Derive, Filter, Fit, Map, Reduce, Report, Select, Source, Stage
from curate.core.ledger import Entry
from curate.core.nouns import facts
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.masks import Fate, fate_of
from curate.core.nouns.pools import Shard, read_shards
from curate.core.rows import mask_files, numbers
from curate.core.store.storage import Storage, open_storage
from curate.core.vectors import from_binary
from curate.engine.record.runs import latest
from curate.engine.run import Result


class Output:
    """Outputs of a run: rows by key, parts by name, members by name."""

    def __init__(self, workspace: str, result: Result) -> None:
        self.storage: Storage = open_storage(workspace)
        self.bases = {name: url.removeprefix(f"{self.storage.url}/") for name, url in result.outputs.items()}
        base = self.bases["pool"]
        self.shards = read_shards(self.storage, base) if base.startswith("pools/") else []
        self.result = result
        self.order = {name: place for place, name in enumerate(result.ops)}

    def ledger(self, name: str) -> Entry:
        return self.result.ledger[name].check(name)

    def manifest(self, name: str) -> Manifest:
        found = Manifest.load(self.storage, self.bases[name])
        assert found is not None
        return found

    def keys(self, shard: Shard) -> list[str]:
        return self.storage.read_table(shard.table, columns=["key"]).column("key").to_pylist()

    def shards_of(self, name: str) -> list[Shard]:
        """Shards of a stage's pool: one that a Derive made, or the acquired pool."""
        pool = latest(self.storage, self.result.run_id).pool_of(name)
        return read_shards(self.storage, self.bases[pool]) if pool in self.bases else self.shards

    def facts(self, name: str) -> list[tuple[Shard, pa.Table]]:
        """The table of facts of every shard that the run has read: the rows that were needed."""
        base = self.bases[name]
        folder, counts = base.split("/versions/")[0], numbers(self.storage.url, base)
        return [(s, facts.read(self.storage, folder, s.id, counts[s.id])) for s in self.shards_of(name)]

    def fates(self, name: str) -> list[tuple[Shard, Fate]]:
        """Each shard with the fates of its rows in the mask of a filter."""
        files = mask_files(self.storage.url, self.bases[name])
        return [(s, fate_of(self.storage.read_table(files[s.id]), name, self.order)) for s in self.shards_of(name)]

    def selection(self, name: str) -> list[dict[str, Any]]:
        files = sorted(self.storage.list(f"{self.bases[name]}/rows"))
        return [r for f in files for r in self.storage.read_table(f"{self.bases[name]}/rows/{f}").to_pylist()]

    def value(self, name: str, stage: Stage) -> Any:
        """The output of a stage, without anything that depends on how the pool was cut into shards."""
        if isinstance(stage, (Source, Derive)):
            return self._rows_of_pool(name)
        if isinstance(stage, Map):
            return self._rows_of_facts(name)
        if isinstance(stage, Filter):
            return self._verdicts(name)
        if isinstance(stage, Select):
            rows = [{n: row[n] for n in ("key", "item", "copies", "reject")} for row in self.selection(name)]
            return sorted(rows, key=lambda row: (row["key"], row["item"]))
        if isinstance(stage, Collect):
            stored = StoredArtifact(self.storage, self.bases[name])
            return [stored.portion(line).to_pylist() for line in stored["portions"].to_pylist()]
        if isinstance(stage, (Reduce, Fit)):
            return {part: plain(value) for part, value in StoredArtifact(self.storage, self.bases[name]).items()}
        of_fingerprint = ("manifest.json", "shards.parquet", ".nv-meta/index.uuid")
        files = [f for f in sorted(self.storage.list(self.bases[name])) if f not in of_fingerprint]
        if isinstance(stage, Report):
            return files
        return {f: self._file(f"{self.bases[name]}/{f}") for f in files}

    def _rows_of_pool(self, name: str) -> dict[str, Any]:
        rows = {}
        for shard in read_shards(self.storage, self.bases[name]):
            table = self.storage.read_table(shard.table).drop_columns(["offset", "size", "parent_row"])
            unset = () if table["status"].null_count < len(table) else ("status",)
            rows |= {row["key"]: row for row in table.drop_columns(unset).to_pylist()}
        return rows

    def _rows_of_facts(self, name: str) -> dict[str, Any]:
        """Rows that were needed, with their status; the others are absent."""
        rows = {}
        for shard, table in self.facts(name):
            keys = self.keys(shard)
            names = [n for n in table.column_names if n not in (facts.ROW, facts.INPUT)]
            values = {n: decoded(table.column(n), table.schema.field(n)) for n in names}
            for place, row in enumerate(table.column(facts.ROW).to_pylist()):
                rows[keys[row]] = {n: values[n][place] for n in names}
        return rows

    def _verdicts(self, name: str) -> dict[str, Any]:
        """Rows that the filter has rejected, with the reason; and of rows that it has seen, reasons by place."""
        rejected, items = {}, {}
        for shard, fate in self.fates(name):
            keys = self.keys(shard)
            for row in np.flatnonzero(fate.stage == self.order[name]):
                rejected[keys[row]] = fate.reason[row]
            for family, lists in fate.items.items():
                items |= {f"{keys[row]} {family}": lists[row] for row in range(shard.rows) if lists[row] is not None}
        return {"rejected": rejected, "items": items}

    def _file(self, path: str) -> Any:
        if path.endswith(".parquet"):
            return self.storage.read_table(path).to_pylist()
        if path.endswith(".sqlite"):  # its header has the version of SQLite
            with closing(sqlite3.connect(self.storage.path(path))) as base:
                return list(base.iterdump())
        return hashlib.sha256(self.storage.read(path)).hexdigest()


def decoded(column: pa.ChunkedArray, field: pa.Field) -> list[Any]:
    """Values as Python objects; float16 vectors as lists of floats."""
    if b"dim" in (field.metadata or {}):
        if pa.types.is_list(column.type):
            values = iter(decoded(pc.list_flatten(column), field))
            lengths = pc.list_value_length(column).to_pylist()
            return [None if length is None else [next(values) for _ in range(length)] for length in lengths]
        vectors = from_binary(column)
        return [None if not np.isfinite(row).all() else row.tolist() for row in vectors]
    return column.to_pylist()


def plain(value: Any) -> Any:
    if isinstance(value, pa.Table):
        return [decoded(value.column(n), value.schema.field(n)) for n in value.column_names]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
