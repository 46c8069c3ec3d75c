"""`curate gc`: remove outputs that no kept run needs and no pin names.

gc takes its lease, reads the records of running runs, keeps everything under the folders they name (`claims.py`), and
stops if it loses the lease.

gc holds the names of all files: about 460 bytes each, 3 GB for the 7 million files of a pool of 230,000 shards and 10
stages.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from curate.core.errors import InputError, StorageError
from curate.core.nouns import facts
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.pools import in_folder
from curate.core.store import lease
from curate.core.store.storage import Storage
from curate.engine.passes.answers.index import FOLDER as INDEX
from curate.engine.passes.answers.log import FOLDER as LOG
from curate.engine.passes.answers.log import folder_of
from curate.engine.record.claims import LEASE
from curate.engine.record.pins import Pin, pins
from curate.engine.record.runs import RunRecord, list_runs
from curate.engine.steps import maker_of
from curate.engine.units.common import fetched
from curate.engine.units.source.fetches import fetches_path
from curate.engine.units.source.records import ALL, read_all, read_record
from curate.engine.units.source.repeats import read_repeats
from curate.engine.units.step import Outside

ASIDE_SECONDS = 24 * 3600
"""Temporary files and uploads older than this are abandoned."""
STARTING_SECONDS = 60.0
TOPS = ("facts", "masks", "artifacts", "selections", "datasets", "pools", "fetches")
BATCH = 1000
"""Removals between two checks of the lease."""
REMOVED = "removed"
"""Folder of a costly stage with one file for each time gc removed its answers."""


def unreachable(
    storage: Storage, keep: int | None = None, drop: Iterable[str] = (), costly: bool = False, now: bool | None = False
) -> tuple[dict[str, int], list[str]]:
    """(folder or file -> bytes, runs) to remove if the last `keep` runs of each recipe are kept (None: all), and those
    that pins name, except those in `drop`. The highest table of each shard of a costly stage stays, unless `costly` is
    given. `now`: also temporary files of the last day (None: unless a run is alive). Raises InputError if one is."""
    left = storage.unfinished()  # before the runs are known: those that begin later have other files
    runs = [RunRecord.load(storage, name) for name in list_runs(storage)]
    dropped = set(drop)
    for name in dropped:
        RunRecord.load(storage, name)
    candidates = [run for run in runs if run.run_id not in dropped]
    pinned = pins(storage).values()
    kept_ids = {run.run_id for run in (candidates if keep is None else _last(candidates, keep))}
    kept_ids |= {run.run_id for run in candidates if run.run_id in {pin.run for pin in pinned}}
    alive = [run.run_id for run in runs if run.state == "running" or _is_starting(run)]
    if now and alive:
        raise InputError(f"--now: run {alive[0]} is alive and may be writing these files; stop it, or leave --now out")
    now, aside = now or (now is None and not alive), time.time() - ASIDE_SECONDS
    kept_ids |= set(alive)
    held = {top: storage.list(top) for top in TOPS}
    reachable = Reachable(storage)
    roots = reachable.of([run for run in runs if run.run_id in kept_ids], pinned) | _leased(storage)
    roots |= _successors(storage, held["datasets"], roots)
    roots |= {path for pool in _pools(roots) for path in _acquisition_records(pool, held["pools"], storage, roots)}
    roots |= _answers(held["facts"], roots, costly)
    above = {parent for root in roots for parent in _parents(root)}
    garbage: dict[str, int] = {}
    for top, files in held.items():
        for file, size in files.items():
            path = f"{top}/{file}"
            unit = _unit(path)
            if unit not in above and roots.isdisjoint(_parents(path)):
                garbage[unit] = garbage.get(unit, 0) + size
    fresh = {path for path in left if now and not path.startswith("students/")}  # a training is not a run
    garbage |= {path: size for path, (size, then) in left.items() if then < aside or path in fresh}
    return garbage, [run.run_id for run in runs if run.run_id not in kept_ids]


def _last(runs: Iterable[RunRecord], keep: int) -> list[RunRecord]:
    """The last `keep` successful runs of each recipe, and its latest run, which the same command resumes if it was
    stopped."""
    recipes: dict[str, list[RunRecord]] = {}
    for run in runs if keep else ():
        recipes.setdefault(run.recipe, []).append(run)
    done = ([run for run in mine if run.state == "done"] for mine in recipes.values())
    return [run for mine in done for run in mine[-keep:]] + [mine[-1] for mine in recipes.values()]


def _is_starting(run: RunRecord) -> bool:
    """Whether a run has a record and may be about to take its lease. The lease of a killed run stays."""
    held = lease.read(run.storage, lease.lease_path(f"runs/{run.run_id}"))
    return run.result is None and held is None and time.time() - float(run.record["started"]) < STARTING_SECONDS


def _parents(path: str) -> list[str]:
    """The path and all its parent folders."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]


class Reachable:
    """Files and folders that runs and pins refer to. Shared manifests are read once."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.roots: set[str] = set()
        self._seen: set[str] = set()

    def of(self, runs: Iterable[RunRecord], pinned: Iterable[Pin]) -> set[str]:
        """Outputs that the runs built or found; for running runs, also the folders they read."""
        for run in runs:
            for output in (*run.outputs.values(), *(run.result or {}).get("pins", {}).values()):
                self._output(output["base"], output.get("mask") or "")
            for started in run.builds():
                if run.result is None or started["stage"] not in run.outputs:
                    self._output(started["base"], started.get("mask") or "")
                    self.roots |= {started["mask"]} if started.get("mask") else set()
                    if started.get("path"):  # facts/<op>/<stage>/<fingerprint>: other fingerprints have answers too
                        path = started["path"]
                        self.roots.add(path.rpartition("/")[0] if run.state == "running" else path)
        for pin in pinned:
            self._output(pin.base)
        return self.roots

    def _output(self, *bases: str) -> None:
        """Add the files and folders of some outputs."""
        for base in bases:
            if not base or base in self._seen:
                continue
            self._seen.add(base)
            self.roots.add(base)
            manifest = Manifest.load(self.storage, base)
            if manifest is None:
                self.roots |= _states(base)
                continue
            maker = maker_of(base)
            needed = maker.files(self.storage, base, manifest) if maker else Outside()
            self.roots.update(needed.files)
            self._output(*needed.outputs)


def _successors(storage: Storage, files: Iterable[str], roots: set[str]) -> set[str]:
    """Datasets that a takedown made of a kept one, which may be gone."""
    found: set[str] = set()
    made = [f"datasets/{file.removesuffix('/manifest.json')}" for file in files if file.endswith("/manifest.json")]
    known = {base: manifest for base in made if base not in roots and (manifest := Manifest.load(storage, base))}
    while (
        fresh := {
            base
            for base, manifest in known.items()
            if f"{base.rpartition('/')[0]}/{manifest.extra.get('predecessor')}" in roots | found
        }
        - found
    ):
        found |= fresh
    return found


def _pools(roots: Iterable[str]) -> set[str]:
    """Folders of pools with at least one kept output."""
    return {"/".join(root.split("/")[:2]) for root in roots if root.startswith("pools/")}


def _answers(files: Iterable[str], roots: set[str], costly: bool) -> set[str]:
    """For stages with an index of answers: the highest table of each shard under each fingerprint, the index, and the
    logs of dead workers, which the next run puts into tables. With `costly`: only the logs of kept runs, and the index
    if a table stays."""
    found = {f"facts/{file}" for file in files if f"/{REMOVED}/" in file}
    if not costly:
        found |= highest(files) | {f"facts/{file}" for file in files if file.split("/")[2:3] == [LOG]}
    parts = [path.split("/") for path in roots | found if path.startswith("facts/")]
    left = {"/".join(of_path[:3]) for of_path in parts if len(of_path) >= 4 and of_path[3] != REMOVED}
    logs = {folder_of("/".join(of_path)) for of_path in parts if len(of_path) == 4}
    return found | logs | {f"{stage}/{INDEX}" for stage in left}


def highest(files: Iterable[str]) -> set[str]:
    """The highest table of each shard under each fingerprint, for costly stages: those with an index, a log or removed
    answers."""
    stages = {"/".join(file.split("/")[:2]) for file in files if file.split("/")[2:3][0] in (INDEX, LOG, REMOVED)}
    by_folder: dict[str, list[str]] = {}
    for file in files:
        parts = file.split("/")
        if "/".join(parts[:2]) in stages and len(parts) == 5 and parts[2] not in (INDEX, LOG, REMOVED):
            by_folder.setdefault("/".join(parts[:3]), []).append("/".join(parts[3:]))
    return {
        facts.table_path(f"facts/{folder}", shard, number)
        for folder, names in by_folder.items()
        for shard, number in facts.latest(names).items()
    }


def _acquisition_records(pool: str, files: Iterable[str], storage: Storage, roots: set[str]) -> set[str]:
    """Records that save a second acquisition, as far as they refer to shards that stay: records of portions with their
    tables (a shard with repeated keys continues under another name), and records of repeats."""
    name = pool.removeprefix("pools/")
    mine = [f"pools/{file}" for file in files if file.startswith((f"{name}/repeats/", f"{name}/portions/"))]
    found: set[str] = set()
    for path in mine:
        if path.startswith(f"{pool}/repeats/"):
            tables = {f"{pool}/shards/{identity}.parquet" for identity, _ in read_repeats(storage, path).values()}
            found |= {path} if tables <= roots else set()
    records = {path: None for path in mine if path.startswith(f"{pool}/portions/") and path.endswith(".json")}
    whole = [path for path in mine if path.startswith(f"{pool}/{ALL}/")]
    combined = {path: read_all(storage, path) for path in sorted(whole)}
    known = {path: record.shard for all_ in combined.values() for path, record in all_.items() if path in records}
    rest = [path for path in records if path not in known]
    known |= {
        path: record.shard for path, record in zip(rest, fetched(lambda p: read_record(storage, p), rest), strict=True)
    }
    for path, shard in known.items():
        if shard.table in roots or (shard.tar in roots and not in_folder(shard)):
            found |= {path, fetches_path(path), shard.table}
    kept = {path for path, all_ in combined.items() if all_.keys() <= found}
    return found | kept | {fetches_path(path) for path in kept}


def _leased(storage: Storage) -> set[str]:
    """Outputs under a live lease, which a run is building."""
    held: set[str] = set()
    for file in storage.list("leases"):
        content = lease.read(storage, f"leases/{file}")
        if content is not None and not lease.is_dead(content):
            held |= {content["output"], content["output"].split("/versions/")[0], *_states(content["output"])}
    return held


def _states(base: str) -> set[str]:
    """Folder of the partial states of an unfinished artifact; which of them it uses is known once it is committed."""
    parts = base.split("/")
    return {f"artifacts/{parts[1]}/partials"} if parts[0] == "artifacts" else set()


def _unit(path: str) -> str:
    """The path that is removed as a whole: a table of facts, a shard's mask, the folder of any other fingerprint or
    version; in pools, the folder of a version or an index, or a single file."""
    parts = path.split("/")
    if parts[0] in ("facts", "masks"):
        return "/".join(parts[: parts.index("versions") + 2]) if "versions" in parts else path
    if parts[0] == "pools":
        return "/".join(parts[:4]) if parts[2] in ("versions", "keys") else path
    if parts[:1] == ["artifacts"] and parts[2:3] == ["partials"]:
        return path
    return "/".join(parts[:3])


def collect(storage: Storage, garbage: Iterable[str], runs: Iterable[str]) -> None:
    """Remove outputs and runs under gc's lease. Raises StorageError if the lease is lost. Removed answers of costly
    stages are counted first, because recomputed answers may differ and need another fingerprint. Manifests are removed
    before all else, so that a kill leaves no committed output incomplete."""
    paths = sorted(garbage)
    costly = {"/".join(path.split("/")[:3]) for path in highest(storage.list("facts")).intersection(paths)}
    for stage in sorted(costly):
        times = len(storage.list(f"{stage}/{REMOVED}"))
        storage.create_json(f"{stage}/{REMOVED}/{times + 1:06d}.json", {"time": time.time()})
    first = [f"{path}/manifest.json" for path in paths if "." not in path.rpartition("/")[2]]
    first += [path for path in paths if f"/{ALL}/" in path]  # these combine records that are removed too
    for count, path in enumerate([*first, *paths]):
        if count % BATCH == 0:
            _check_lease(storage)
        storage.remove(path)
    for run_id in runs:
        storage.remove(f"runs/{run_id}")


def _check_lease(storage: Storage) -> None:
    held = lease.read(storage, lease.lease_path(LEASE))
    if held is None or held["owner"] != lease.owner():
        raise StorageError(f"{storage.url}: gc lost its lease and stopped; run it again")
