"""Tombstones: samples to exclude from every selection and dataset, by key, URL or sha256.

The list is numbered, append-only segments in the workspace (`tombstones/000001.json`). Its digest enters the
fingerprints of Selects and Packs, so that they rerun after a new tombstone and older datasets remain distinguishable.
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
                hit = pc.is_in(table.column(name), value_set=pa.array(values, pa.string()))
                excluded |= hit.to_numpy(zero_copy_only=False)
        return excluded


def load(storage: Storage) -> Tombstones:
    values: dict[str, set[str]] = {name: set() for name in FIELDS}
    for file in sorted(storage.list("tombstones")):
        for name, items in storage.read_json(f"tombstones/{file}")["values"].items():
            values[name].update(items)
    return Tombstones({name: tuple(sorted(items)) for name, items in values.items()})


def add(storage: Storage, entries: Iterable[str], why: str) -> int:
    """Append entries: 32 hex characters are a key, 64 a sha256, anything with `://` a URL. Returns their number."""
    values: dict[str, list[str]] = {name: [] for name in FIELDS}
    for entry in (line.strip() for line in entries):
        if entry and not entry.startswith("#"):
            values[_kind(entry)].append(entry)
    count = sum(len(items) for items in values.values())
    if not count:
        raise InputError("tombstones: no entries; give keys, sha256 digests or URLs, one per line")
    _append(storage, {"values": values, "why": why})
    return count


def _kind(entry: str) -> str:
    if "://" in entry:
        return "url"
    if len(entry) in (32, 64) and all(c in "0123456789abcdef" for c in entry):
        return "key" if len(entry) == 32 else "sha256"
    raise InputError(f"tombstones: {entry!r} is not a key (32 hex), sha256 (64 hex) or URL; fix the line")


def _append(storage: Storage, segment: dict[str, Any]) -> None:
    number = len(storage.list("tombstones"))
    while True:
        number += 1
        try:
            storage.create_json(f"tombstones/{number:06d}.json", segment)
            return
        except AlreadyExistsError:
            continue
