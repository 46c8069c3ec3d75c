"""What takedowns have done, for readers of earlier runs: rows without bytes, and versions of datasets.

takedowns/000001/plan.json       where the samples were; a takedown with a plan and no receipt was killed, and the
                                 same command resumes it
takedowns/000001/receipt.json    what was done, what is left, and a digest of the receipt itself
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from curate.core.store.storage import Storage, open_storage

FOLDER = "takedowns"
ERASED = "erased"
"""Reason of a row whose bytes a takedown has removed."""


@dataclass(frozen=True)
class Takedown:
    erase: bool
    rows: Mapping[str, tuple[int, ...]]
    """Shard -> rows of the samples in it."""
    versions: Mapping[str, str]
    """Dataset that had one of them -> its newest version, which has none."""


def takedowns(storage: Storage) -> list[Takedown]:
    """Oldest first: a listing, and the plans that this process has not read."""
    files = sorted(file for file in storage.list(FOLDER) if file.endswith("/plan.json"))
    return [_read(storage.url, f"{FOLDER}/{file}") for file in files]


@lru_cache(maxsize=256)
def _read(url: str, path: str) -> Takedown:
    plan = open_storage(url).read_json(path)
    rows = {pool["shard"]["id"]: tuple(row["row"] for row in pool["rows"]) for pool in plan["found"]["pools"]}
    versions = {base: f"{base.rpartition('/')[0]}/{made}" for base, made in plan["versions"].items()}
    return Takedown(plan["asked"]["erase"], rows, versions)


def erased_rows(storage: Storage) -> dict[str, list[int]]:
    """Shard -> its erased rows."""
    found: dict[str, set[int]] = {}
    for one in takedowns(storage):
        for shard, rows in one.rows.items() if one.erase else ():
            found.setdefault(shard, set()).update(rows)
    return {shard: sorted(rows) for shard, rows in found.items()}


def standing(storage: Storage) -> dict[str, str]:
    """Dataset that an erasure has removed -> the version that replaces it."""
    made = {old: new for one in takedowns(storage) if one.erase for old, new in one.versions.items()}
    found = dict[str, str]()
    for old, new in made.items():
        while new in made:
            new = made[new]
        found[old] = new
    return found


def origins(storage: Storage) -> dict[str, list[str]]:
    """Version that a takedown has made -> the datasets that it was made of, which may be removed; nearest first."""
    made: dict[str, list[str]] = {}
    for one in reversed(takedowns(storage)):
        for old, new in one.versions.items():
            made.setdefault(new, []).append(old)
    found = dict[str, list[str]]()
    for new in made:
        found[new] = list(made[new])
        for old in found[new]:  # it grows
            found[new] += [base for base in made.get(old, ()) if base not in found[new]]
    return found
