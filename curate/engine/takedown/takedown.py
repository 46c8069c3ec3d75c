"""A takedown: found first and written down (see `core.nouns.takedowns`), then applied, then receipted."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from curate.core.errors import AlreadyExistsError, CorruptError, InputError
from curate.core.hashing import digest
from curate.core.nouns import tombstones
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.takedowns import FOLDER
from curate.core.store.storage import Storage, open_storage, open_workspace
from curate.engine.record.pins import pins
from curate.engine.record.runs import RunRecord, list_runs
from curate.engine.takedown import erase as erasing
from curate.engine.takedown.bytes import Mark, digest_of, scan
from curate.engine.takedown.datasets import without
from curate.engine.takedown.find import entries_of, find, source_files, tars_of

_RETRY = "verify an earlier receipt, or restore its source and take it down again"


class _Row(BaseModel):
    key: str
    sha256: str | None
    offset: int | None


class _Rows(BaseModel):
    rows: list[_Row]


class _Release(BaseModel):
    release: str


class _Found(BaseModel):
    keys: list[str]
    releases: list[_Release]
    pools: list[_Rows]
    marks: list[Mark]
    marked: dict[str, list[str]] | None = None
    unstored: dict[str, str | None] | None = None
    unknown: list[str] = []


class Receipt(BaseModel):
    """What `verify` needs of a receipt."""

    workspace: str
    erased: bool
    found: _Found
    datasets: dict[str, str]

    def unmarked(self) -> list[str]:
        """Keys whose bytes are not known, although they were stored."""
        found, known = self.found, {mark.sha256 for mark in self.found.marks}
        rows = [row for pool in found.pools for row in pool.rows]
        marked = set(found.keys if found.marked is None else found.marked) if known else set()
        marked |= {row.key for row in rows if row.sha256 in known}
        older = {row.key for row in rows if known and row.offset is None}  # receipts that do not say it
        return sorted(set(found.keys) - marked - set(older if found.unstored is None else found.unstored))


def takedown(
    storage: Storage, given: Sequence[str], why: str, *, erase: bool, releases: Sequence[str], runs: Sequence[str],
    known: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Take samples out of every dataset and every later run and, with `erase`, remove their bytes. Returns the receipt.

    Raises InputError if nothing has them and not `known`, if a run cannot be asked, or while one may still write them.
    """
    for run in list_runs(storage):
        if RunRecord.load(storage, run).state == "running":
            raise InputError(f"takedown: run {run} may still write the samples; wait for it, or `curate stop {run}`")
    entries = entries_of(storage, given)
    asked = {"entries": sorted(entries), "erase": erase, "releases": list(releases), "runs": list(runs)}
    base, plan = _planned(storage, entries, why, asked, known)
    found = plan["found"]
    _add_tombstones(storage, [*entries, *found["keys"], *found["sha256"]], why)
    versions = {line: f"{line.rpartition('/')[0]}/{made}" for line, made in plan["versions"].items()}
    for line in plan["heads"]:
        if Manifest.load(storage, versions[line]) is None:
            without(storage, line, found["keys"])
    if erase:
        for line in found["datasets"]:
            storage.remove(f"{line['dataset']}/manifest.json")
            storage.remove(line["dataset"])
        erasing.erase(storage, found)
    receipt = _receipt(storage, base, plan, versions)
    storage.publish_bytes(f"{base}/receipt.json", json.dumps(receipt, indent=1).encode() + b"\n")
    return receipt


def _planned(
    storage: Storage, entries: Mapping[str, str], why: str, asked: dict[str, Any], known: bool
) -> tuple[str, dict[str, Any]]:
    """Folder and plan of this takedown: of one that was killed, or a new one."""
    files = storage.list(FOLDER)
    for name in sorted(file for file in files if file.endswith("/plan.json")):
        if name.replace("plan.json", "receipt.json") not in files:
            plan = storage.read_json(f"{FOLDER}/{name}")
            if plan["asked"] == asked:
                return f"{FOLDER}/{name.partition('/')[0]}", plan
    found = find(storage, entries, asked["releases"], asked["runs"], known)
    rows = {line["dataset"]: line["rows"] for line in found["datasets"]}
    made = _successors(storage)
    heads = sorted(rows.keys() - made.keys())
    for base in heads:
        removed = sorted({row["key"] for row in rows[base]})
        made[base] = digest({"predecessor": base.rpartition("/")[2], "removed": removed})
    versions = {}
    files_before = erasing.files_of(storage, found) if asked["erase"] else []
    for base in sorted(rows):
        folder, last = base.rpartition("/")[0], made[base]
        while f"{folder}/{last}" in made:
            last = made[f"{folder}/{last}"]
        versions[base] = last
        tars = tars_of(storage, base)
        files_before += sorted({f"{base}/{tars[row['shard']]}" for row in rows[base]})
    plan = {
        "asked": asked, "why": why, "found": found, "heads": heads, "versions": versions,
        "before": {path: digest_of(storage, path) for path in files_before},
    }  # fmt: skip
    number = len({file.partition("/")[0] for file in files})
    while True:
        number += 1
        try:
            storage.create_json(f"{FOLDER}/{number:06d}/plan.json", plan)
            return f"{FOLDER}/{number:06d}", plan
        except AlreadyExistsError:
            continue


def _successors(storage: Storage) -> dict[str, str]:
    """Each dataset that has a new version -> its fingerprint."""
    found = {}
    for file in storage.list("datasets"):
        if file.endswith("/manifest.json"):
            manifest = Manifest.load(storage, f"datasets/{file.removesuffix('/manifest.json')}")
            if manifest and "predecessor" in manifest.extra:
                found[f"datasets/{file.split('/')[0]}/{manifest.extra['predecessor']}"] = manifest.fingerprint
    return found


def _add_tombstones(storage: Storage, entries: Sequence[str], why: str) -> None:
    known = {value for values in tombstones.load(storage).values.values() for value in values}
    fresh = sorted(set(entries) - known)
    if fresh:
        tombstones.add(storage, fresh, why)


def _receipt(storage: Storage, base: str, plan: dict[str, Any], versions: dict[str, str]) -> dict[str, Any]:
    found, erase = plan["found"], plan["asked"]["erase"]
    removed = [line["dataset"] for line in found["datasets"]]
    parents = {row.get("parent") for pool in found["pools"] for row in pool["rows"]}
    after = {}
    for path in plan["before"]:
        kept = next((path.replace(old, new, 1) for old, new in versions.items() if path.startswith(f"{old}/")), path)
        after[path] = {"now": kept, "digest": digest_of(storage, kept)} if storage.exists(kept) else None
    linked = {
        old: sum(f"{old}/{tar}" not in plan["before"] for tar in tars_of(storage, versions[old]))
        for old in plan["heads"]
    }
    receipt = {
        "receipt": f"{base}/receipt.json", "workspace": storage.url, "time": time.time(), "why": plan["why"],
        "asked": plan["asked"], "erased": erase, "found": found, "datasets": versions,
        "unchanged_tars": linked, "before": plan["before"], "after": after,
        "left": {
            "source_files": source_files(storage, found),
            "weights": [run for run in found["runs"] if run["seen"]],
            "releases": [release["release"] for release in found["releases"] if release["files"]],
            "parents": sorted(parents - {None, *found["keys"]}),
            "near": found["near"],
            "pins": [pin.name for pin in pins(storage).values() if erase and pin.base in removed],
        },
    }  # fmt: skip
    return {**receipt, "digest": digest(receipt)}


def read_receipt(path: str) -> Receipt:
    """Raises InputError for a file that is not a receipt, or was changed."""
    try:
        receipt = json.loads(Path(path).read_text("utf-8"))
        own = receipt.pop("digest")
        if own != digest(receipt):
            raise InputError(f"{path}: the receipt was changed after it was written; use the original")
        return Receipt.model_validate(receipt)
    except InputError:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(f"{path}: not a receipt of a takedown ({what}); give a receipt.json") from error
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not a receipt of a takedown ({error}); give a receipt.json") from error


def verify(path: str) -> tuple[dict[str, bool], list[str]]:
    """(URL of each file that was read -> whether it still has the bytes, samples without bytes that could be found).

    Reads every file that the takedown was to clear: the whole workspace and the releases after an erasure, otherwise
    the new versions of the datasets.
    """
    receipt = read_receipt(path)
    storage = open_workspace(receipt.workspace, create=False)
    if unmarked := receipt.unmarked():
        raise InputError(f"{path}: no mark of {unmarked[0]} is known, so nothing can be verified; {_RETRY}")
    never = [key for key, by in (receipt.found.unstored or {}).items() if by is None] + receipt.found.unknown
    if not receipt.found.marks:
        return {}, never
    prefixes = [""] if receipt.erased else sorted(set(receipt.datasets.values()))
    missing = [base for base in prefixes if base and not storage.exists(f"{base}/manifest.json")]
    if missing:
        raise CorruptError(f"{storage.url_of(missing[0])}: this version is gone; nothing can be verified of it")
    places = [(storage, prefix) for prefix in prefixes]
    places += [(open_storage(one.release), "") for one in receipt.found.releases if receipt.erased]
    files: dict[str, bool] = {}
    for place, prefix in places:
        read = dict(scan(place, prefix, receipt.found.marks))
        if not read:
            raise InputError(f"{place.url}: no files, so nothing can be verified; put them back there first")
        files |= read
    return files, never
