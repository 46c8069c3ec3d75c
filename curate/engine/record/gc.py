"""`curate gc`: remove what no kept run reaches and no pin holds. `curate du`: what there is, and what gc would free.

A run writes down each folder that it is about to look into, waits while gc holds its lease, and only then looks. gc
takes the lease, reads the running runs and keeps everything under what they wrote down; it goes on only while it holds
the lease. So nothing that a run has found is removed under it.

It holds the names of all files: about 460 bytes each, 3 GB for the 7 million of a pool of 230,000 shards and 10 stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from curate.core import facts
from curate.core.errors import StorageError
from curate.core.nouns import STATES, Manifest, read_lines, read_shards
from curate.core.store import lease
from curate.core.store.storage import TEMPORARY, Storage
from curate.engine.passes.answer_log import FOLDER as LOG
from curate.engine.passes.answers import FOLDER as INDEX
from curate.engine.record.pins import Pin, pins
from curate.engine.record.runs import Run, list_runs
from curate.engine.units.common import fetched
from curate.engine.units.derive import COVERS
from curate.engine.units.source import ALL, read_all, read_record, read_repeats

ASIDE_SECONDS = 24 * 3600
"""Half-written files older than this belong to nobody."""
STARTING_SECONDS = 60.0
TOPS = ("facts", "masks", "artifacts", "selections", "datasets", "pools")
LEASE = "gc"
BATCH = 1000
"""Removals between two looks at the lease."""
REMOVED = "removed"
"""Folder of a costly stage in which each removal of answers leaves a file."""


def wait(storage: Storage, over: Callable[[], bool] = lambda: False) -> None:
    """Return once no gc is under way, or `over`."""
    path = lease.lease_path(LEASE)
    while not over() and lease.is_alive(storage, path):
        time.sleep(lease.POLL_SECONDS)


@contextmanager
def alone(storage: Storage) -> Iterator[None]:
    """Hold the lease of gc."""
    with lease.hold(storage, LEASE, lambda: False):
        yield


def unreachable(
    storage: Storage, keep: int | None = None, drop: Iterable[str] = (), costly: bool = False
) -> tuple[dict[str, int], list[str]]:
    """(folder or file -> bytes, runs) to remove when the last `keep` runs are kept (None: all) but those in `drop`. The
    answers of costly stages stay, the highest table of each shard, unless `costly` is given."""
    runs = [Run.load(storage, name) for name in list_runs(storage)]
    dropped = set(drop)
    for name in dropped:
        Run.load(storage, name)
    candidates = [run for run in runs if run.run_id not in dropped]
    kept = candidates if keep is None else (candidates[-keep:] if keep else [])
    kept_ids = {run.run_id for run in kept} | {run.run_id for run in runs if run.state == "running" or _starts(run)}
    held = {top: storage.list(top) for top in TOPS}
    reach = Reach(storage)
    roots = reach.of([run for run in runs if run.run_id in kept_ids], pins(storage).values()) | _held(storage)
    roots |= {path for pool in _pools(roots) for path in _memories(pool, held["pools"], storage, roots)}
    roots |= _answers(held["facts"], roots, costly)
    above = {parent for root in roots for parent in _parents(root)}
    garbage: dict[str, int] = {}
    for top, files in held.items():
        for file, size in files.items():
            path = f"{top}/{file}"
            unit = _unit(path)
            if unit not in above and roots.isdisjoint(_parents(path)):
                garbage[unit] = garbage.get(unit, 0) + size
    garbage |= _aside(storage)
    return garbage, [run.run_id for run in runs if run.run_id not in kept_ids]


def _starts(run: Run) -> bool:
    """Whether a run has written its record and may be about to take its lease; that of a killed run stays."""
    held = lease.read(run.storage, lease.lease_path(f"runs/{run.run_id}"))
    return run.result is None and held is None and time.time() - float(run.record["started"]) < STARTING_SECONDS


def _parents(path: str) -> list[str]:
    """The path and every folder above it."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]


class Reach:
    """Files and folders that runs and pins name. Manifests that several of them name are read once."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.roots: set[str] = set()
        self._seen: set[str] = set()

    def of(self, runs: Iterable[Run], pinned: Iterable[Pin]) -> set[str]:
        """What the runs have made or found; of runs under way, all that they look into."""
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

    def _output(self, base: str, mask: str = "") -> None:
        """What one output of a run consists of."""
        for found in (mask, base if base.startswith("masks/") else ""):
            self._mask(found)
        if base in self._seen or base.startswith("masks/"):
            return
        self._seen.add(base)
        self.roots.add(base)
        manifest, top = Manifest.load(self.storage, base), base.split("/")[0]
        if manifest is None:
            self.roots |= _states(base)
        elif top == "facts":
            self._tables(base.split("/versions/")[0], base)
        elif top == "pools":
            self._pool(base, manifest)
        elif "states" in manifest.extra:
            names = read_lines(self.storage, base, ["file"], STATES).column("file").to_pylist()
            self.roots |= {f"{manifest.extra['states']}/{name}" for name in names}

    def _tables(self, folder: str, base: str, file: str = "shards.parquet") -> None:
        """Numbered tables that a list of shards names."""
        shards, numbers = (
            column.to_pylist() for column in read_lines(self.storage, base, ["id", "number"], file).columns
        )
        self.roots |= {facts.table_path(folder, *line) for line in zip(shards, numbers, strict=True)}

    def _pool(self, base: str, manifest: Manifest) -> None:
        """Tars, tables and keys of a pool version; of a derived one, also the tables that say what became of its
        parents, and what the parents lie in."""
        todo = read_shards(self.storage, base)
        while todo:
            shard = todo.pop()
            if shard.table not in self.roots:
                self.roots |= {shard.tar, shard.table}
                if shard.parent:
                    todo.append(shard.parent_shard())
            self.roots.add(shard.tar)
        if "keys" in manifest.extra:
            self.roots.add(manifest.extra["keys"]["folder"])
        if manifest.extra.get("derived"):
            self._tables(manifest.extra["derived"], base, COVERS)

    def _mask(self, base: str) -> None:
        if not base or base in self._seen:
            return
        self.roots.add(base)
        manifest = Manifest.load(self.storage, base)
        if manifest is not None:
            self._seen.add(base)
            self.roots |= set(read_lines(self.storage, base, ["file"]).column("file").to_pylist())
            for other in manifest.extra.get("bases", ()):
                self._mask(other)


def _pools(roots: Iterable[str]) -> set[str]:
    """Folders of the pools that something is kept of."""
    return {"/".join(root.split("/")[:2]) for root in roots if root.startswith("pools/")}


def _answers(files: Iterable[str], roots: set[str], costly: bool) -> set[str]:
    """Of stages with an index of answers: the highest table of each shard under each fingerprint, the index, and what
    dead workers have left in logs, which the next run puts into tables. With `costly`, the index alone, of stages of
    which a table stays."""
    found = {f"facts/{file}" for file in files if f"/{REMOVED}/" in file}
    if not costly:
        found |= _highest(files) | {f"facts/{file}" for file in files if file.split("/")[2:3] == [LOG]}
    left = {"/".join(path.split("/")[:3]) for path in roots | found if len(path.split("/")) == 6}
    return found | {f"{stage}/{INDEX}" for stage in left}


def _highest(files: Iterable[str]) -> set[str]:
    """The highest table of each shard under each fingerprint, of stages with an index of answers."""
    stages = {"/".join(file.split("/")[:2]) for file in files if f"/{INDEX}/" in file}
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


def _memories(pool: str, files: Iterable[str], storage: Storage, roots: set[str]) -> set[str]:
    """What saves an import from being done again, as far as it speaks of shards that stay: records of portions with the
    tables they name (a shard that repeats keys goes on under another), and records of repeats."""
    name = pool.removeprefix("pools/")
    mine = [f"pools/{file}" for file in files if file.startswith((f"{name}/repeats/", f"{name}/portions/"))]
    found: set[str] = set()
    for path in mine:
        if path.startswith(f"{pool}/repeats/"):
            tables = {f"{pool}/shards/{identity}.parquet" for identity, _ in read_repeats(storage, path).values()}
            found |= {path} if tables <= roots else set()
    records = {path: None for path in mine if path.startswith(f"{pool}/portions/") and path.endswith(".json")}
    whole = [path for path in mine if path.startswith(f"{pool}/{ALL}/")]
    told = {path: read_all(storage, path) for path in sorted(whole)}
    known = {path: record.shard for all_ in told.values() for path, record in all_.items() if path in records}
    rest = [path for path in records if path not in known]
    known |= {
        path: record.shard for path, record in zip(rest, fetched(lambda p: read_record(storage, p), rest), strict=True)
    }
    for path, shard in known.items():
        if shard.table in roots or shard.tar in roots:
            found |= {path, shard.table}
    return found | {path for path, all_ in told.items() if all_.keys() <= found}


def _held(storage: Storage) -> set[str]:
    """Outputs under a live lease: somebody is building them."""
    held: set[str] = set()
    for file in storage.list("leases"):
        content = lease.read(storage, f"leases/{file}")
        if content is not None and not lease.is_dead(content):
            held |= {content["output"], content["output"].split("/versions/")[0], *_states(content["output"])}
    return held


def _states(base: str) -> set[str]:
    """Where the states of an artifact under way lie: which of the op's they are is known once it is committed."""
    parts = base.split("/")
    return {f"artifacts/{parts[1]}/partials"} if parts[0] == "artifacts" else set()


def _unit(path: str) -> str:
    """What is removed as one: a table of facts, a mask of a shard, the folder of any other fingerprint or version; in
    pools, the folder of a version or an index, or a single file."""
    parts = path.split("/")
    if parts[0] in ("facts", "masks"):
        return "/".join(parts[: parts.index("versions") + 2]) if "versions" in parts else path
    if parts[0] == "pools":
        return "/".join(parts[:4]) if parts[2] in ("versions", "keys") else path
    if parts[:1] == ["artifacts"] and parts[2:3] == ["partials"]:
        return path
    return "/".join(parts[:3])


def _aside(storage: Storage) -> dict[str, int]:
    if not storage.local:
        return {}
    old = time.time() - ASIDE_SECONDS
    found = [path for path in Path(storage.root).rglob(f".*{TEMPORARY}") if path.stat().st_mtime < old]
    return {str(path.relative_to(storage.root)): path.stat().st_size for path in found}


def collect(storage: Storage, garbage: Iterable[str], runs: Iterable[str]) -> None:
    """Remove, under the lease of gc. Raises StorageError where it was lost on the way. Answers of costly stages that go
    are counted first: other answers may come back, so what is computed from now on has another fingerprint. Manifests
    go before all else: a kill on the way leaves nothing that is committed and not whole."""
    paths = sorted(garbage)
    costly = {"/".join(path.split("/")[:3]) for path in _highest(storage.list("facts")).intersection(paths)}
    for stage in sorted(costly):
        times = len(storage.list(f"{stage}/{REMOVED}"))
        storage.create_json(f"{stage}/{REMOVED}/{times + 1:06d}.json", {"time": time.time()})
    first = [f"{path}/manifest.json" for path in paths if "." not in path.rpartition("/")[2]]
    first += [path for path in paths if f"/{ALL}/" in path]  # each speaks for records that go too
    for count, path in enumerate([*first, *paths]):
        if count % BATCH == 0:
            _still_mine(storage)
        storage.remove(path)
    for run_id in runs:
        storage.remove(f"runs/{run_id}")


def _still_mine(storage: Storage) -> None:
    held = lease.read(storage, lease.lease_path(LEASE))
    if held is None or held["owner"] != lease.owner():
        raise StorageError(f"{storage.url}: gc lost its lease and stopped; run it again")
