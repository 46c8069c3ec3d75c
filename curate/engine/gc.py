"""`curate gc`: remove what no kept run reaches. A dry run by default."""

from __future__ import annotations

import time
from collections.abc import Iterable

from curate.core import lease
from curate.core.nouns import Manifest, read_shards
from curate.core.storage import TEMPORARY, Storage
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
    reached = _reached(storage, [run for run in runs if run.run_id in kept_ids])
    held = _held(storage)
    garbage: dict[str, int] = {}
    for top in ("columns", "artifacts", "selections", "datasets", "pools"):
        for file, size in storage.list(top).items():
            path = f"{top}/{file}"
            unit = _unit(path)
            if not any(_within(path, root) or _within(root, unit) for root in reached | held):
                garbage[unit] = garbage.get(unit, 0) + size
    garbage |= _aside(storage)
    return garbage, [run.run_id for run in runs if run.run_id not in kept_ids]


def _reached(storage: Storage, runs: list[Run]) -> set[str]:
    roots: set[str] = set()
    for run in runs:
        for output in run.outputs.values():
            roots.add(output["base"])
            if output.get("path"):
                roots.add(output["path"])
            manifest = Manifest.load(storage, output["base"])
            if manifest is not None and "states" in manifest.extra:
                roots.add(manifest.extra["states"])
            if output["base"].startswith("pools/") and storage.exists(f"{output['base']}/shards.parquet"):
                namespace = output["base"].split("/")[1]
                roots |= {f"pools/{namespace}/portions", f"pools/{namespace}/repeats"}
                for shard in read_shards(storage, output["base"]):
                    roots |= {shard.tar, shard.table}
    return roots


def _held(storage: Storage) -> set[str]:
    """Outputs under a live lease: somebody is building them."""
    held: set[str] = set()
    for file in storage.list("leases"):
        content = lease.read(storage, f"leases/{file}")
        if content is not None and not lease.is_gone(content["owner"]):
            held |= {content["output"], content["output"].split("/versions/")[0]}
    return held


def _unit(path: str) -> str:
    """What is removed as one: a fingerprint's folder; in pools, a version's folder or a single file."""
    parts = path.split("/")
    if parts[0] == "pools":
        return "/".join(parts[:4])
    if parts[:1] == ["artifacts"] and parts[2:3] == ["partials"]:
        return "/".join(parts[:4])
    return "/".join(parts[:3])


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root + "/")


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
