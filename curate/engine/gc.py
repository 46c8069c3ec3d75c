"""`curate gc`: remove what no kept run reaches and no pin holds. A dry run by default."""

from __future__ import annotations

import time
from collections.abc import Iterable

from curate.core import lease
from curate.core.nouns import Manifest, read_shards
from curate.core.storage import TEMPORARY, Storage
from curate.engine.pins import pins
from curate.engine.record import Run, list_runs

ASIDE_SECONDS = 24 * 3600
"""Half-written files older than this belong to nobody."""


def unreachable(
    storage: Storage, keep: int | None = None, drop: Iterable[str] = ()
) -> tuple[dict[str, int], list[str]]:
    """(folder or file -> bytes, runs) to remove when the last `keep` runs are kept (None: all) but those in `drop`."""
    runs = [Run.load(storage, name) for name in list_runs(storage)]
    dropped = set(drop)
    for name in dropped:
        Run.load(storage, name)
    candidates = [run for run in runs if run.run_id not in dropped]
    kept = candidates if keep is None else (candidates[-keep:] if keep else [])
    kept_ids = {run.run_id for run in kept} | {run.run_id for run in runs if run.state == "running"}
    roots = _reached(storage, [run for run in runs if run.run_id in kept_ids]) | _held(storage)
    roots |= {pin.base for pin in pins(storage).values()}
    above = {parent for root in roots for parent in _parents(root)}
    garbage: dict[str, int] = {}
    for top in ("columns", "artifacts", "selections", "datasets", "pools"):
        for file, size in storage.list(top).items():
            path = f"{top}/{file}"
            unit = _unit(path)
            if unit not in above and roots.isdisjoint(_parents(path)):
                garbage[unit] = garbage.get(unit, 0) + size
    garbage |= _aside(storage)
    return garbage, [run.run_id for run in runs if run.run_id not in kept_ids]


def _parents(path: str) -> list[str]:
    """The path and every folder above it."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _reached(storage: Storage, runs: list[Run]) -> set[str]:
    """Files and folders that the runs have made or found, also those that a failed run has not completed."""
    roots: set[str] = set()
    pools: set[str] = set()
    for run in runs:
        for output in [*run.outputs.values(), *run.builds()]:
            roots.add(output["base"])
            if output.get("path"):
                roots.add(output["path"])
            manifest = Manifest.load(storage, output["base"])
            if manifest is not None and "states" in manifest.extra:
                roots.add(manifest.extra["states"])
            if manifest is None:
                roots |= _states(output["base"])
            if output["base"].startswith("pools/") and manifest is not None:
                pools.add(output["base"])
    for base in pools:
        for shard in read_shards(storage, base):
            roots |= {shard.tar, shard.table}
    for namespace in {base.split("/")[1] for base in pools}:
        roots |= _memories(storage, namespace, roots)
    return roots


def _memories(storage: Storage, namespace: str, roots: set[str]) -> set[str]:
    """What saves an import from being done again, as far as it speaks of shards that stay: records of portions with the
    tables they name (a shard that repeats keys goes on under another), and records of repeats."""
    found: set[str] = set()
    amended: set[str] = set()
    for file in storage.list(f"pools/{namespace}/repeats"):
        path = f"pools/{namespace}/repeats/{file}"
        shards = [result["shard"] for result in storage.read_json(path).values()]
        if all(shard["table"] in roots for shard in shards):
            found.add(path)
            amended.update(shard["tar"] for shard in shards)
    for file in storage.list(f"pools/{namespace}/portions"):
        path = f"pools/{namespace}/portions/{file}"
        shard = storage.read_json(path)["shard"]
        if shard["table"] in roots or shard["tar"] in roots | amended:
            found |= {path, shard["table"]}
    return found


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
    """What is removed as one: a fingerprint's folder; in pools, a version's folder or a single file."""
    parts = path.split("/")
    if parts[0] == "pools":
        return "/".join(parts[:4])
    if parts[:1] == ["artifacts"] and parts[2:3] == ["partials"]:
        return "/".join(parts[:4])
    return "/".join(parts[:3])


def _aside(storage: Storage) -> dict[str, int]:
    if not storage.local:
        return {}
    from pathlib import Path

    old = time.time() - ASIDE_SECONDS
    found = [path for path in Path(storage.root).rglob(f".*{TEMPORARY}") if path.stat().st_mtime < old]
    return {str(path.relative_to(storage.root)): path.stat().st_size for path in found}


def collect(storage: Storage, garbage: Iterable[str], runs: Iterable[str]) -> None:
    for path in garbage:
        storage.remove(path)
    for run_id in runs:
        storage.remove(f"runs/{run_id}")
