"""Tombstones: samples to exclude from every selection and dataset, by key, URL or sha256.

The list is numbered, append-only segments in the workspace (`tombstones/000001.json`), which add entries or take them
back. The digest of what is excluded enters the fingerprints of Selects and Packs, so that they rerun after a new
tombstone and older datasets remain distinguishable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.errors import AlreadyExistsError, InputError
from curate.core.hashing import digest
from curate.core.store.storage import Storage

FIELDS = ("key", "url", "sha256")
COLUMNS = (*FIELDS, "parent", "root")
"""Columns of a pool that are checked: the key of a parent or a root excludes all samples derived from it."""


@dataclass(frozen=True)
class Tombstones:
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return digest({name: sorted(values) for name, values in self.values.items()}) if self else ""

    def __bool__(self) -> bool:
        return any(self.values.values())

    def mask(self, table: pa.Table) -> NDArray[np.bool_]:
        """True for the rows (with `COLUMNS`) that are tombstoned."""
        excluded = np.zeros(table.num_rows, dtype=bool)
        for name in COLUMNS:
            values = self.values.get("key" if name in ("parent", "root") else name)
            if values and name in table.column_names:
                hit = pc.is_in(table.column(name).cast(pa.string()), value_set=pa.array(values, pa.string()))
                excluded |= hit.to_numpy(zero_copy_only=False)
        return excluded


def history(storage: Storage) -> list[tuple[str, str, str, bool]]:
    """(kind, value, reason, whether it takes an earlier entry back), oldest first."""
    segments = [storage.read_json(f"tombstones/{file}") for file in sorted(storage.list("tombstones"))]
    return [
        (kind, value, segment["why"], what == "removed")
        for segment in segments
        for what in ("values", "removed")
        for kind, values in segment.get(what, {}).items()
        for value in values
    ]


def load(storage: Storage) -> Tombstones:
    values: dict[str, set[str]] = {name: set() for name in FIELDS}
    for kind, value, _, removed in history(storage):
        (values[kind].discard if removed else values[kind].add)(value)
    return Tombstones({name: tuple(sorted(items)) for name, items in values.items()})


def add(storage: Storage, entries: Iterable[str], why: str) -> int:
    """Append entries: 32 hex characters are a key, 64 a sha256, anything with `://` a URL. Returns their number."""
    return _append(storage, {"values": _by_kind(entries), "why": why})


def remove(storage: Storage, entries: Iterable[str], why: str) -> int:
    """Take entries back, of which the list then has both. Returns their number."""
    values, known = _by_kind(entries), load(storage).values
    for kind, items in values.items():
        if missing := set(items).difference(known[kind]):
            raise InputError(f"tombstones: there is none for {min(missing)!r}; `curate tombstone list` shows all")
    return _append(storage, {"values": {}, "removed": values, "why": why})


def _by_kind(entries: Iterable[str]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {name: [] for name in FIELDS}
    for entry in (line.strip() for line in entries):
        if entry and not entry.startswith("#"):
            kind = kind_of(entry)
            if kind is None:
                raise InputError(f"tombstones: {entry!r} is not a key (32 hex), sha256 (64 hex) or URL; fix the line")
            values[kind].append(entry)
    if not any(values.values()):
        raise InputError("tombstones: no entries; give keys, sha256 digests, URLs or source ids, one per line")
    return values


def kind_of(entry: str) -> str | None:
    """One of FIELDS; None for anything else, such as a source id."""
    if "://" in entry:
        return "url"
    if len(entry) in (32, 64) and all(c in "0123456789abcdef" for c in entry):
        return "key" if len(entry) == 32 else "sha256"
    return None


def _append(storage: Storage, segment: dict[str, Any]) -> int:
    if not segment["why"].strip():
        raise InputError("tombstones: the reason is blank; give one, which stays in the list")
    number = len(storage.list("tombstones"))
    while True:
        number += 1
        try:
            storage.create_json(f"tombstones/{number:06d}.json", segment)
            return sum(map(len, (segment.get("removed") or segment["values"]).values()))
        except AlreadyExistsError:
            continue
