"""The portions that a run reads of a Source, and the records that map them to shards."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from curate.core.contracts import Portion, Source
from curate.core.errors import InputError, PreflightError
from curate.core.hashing import digest
from curate.core.ledger import joined_skips
from curate.core.recipe.pipeline import Node
from curate.core.store.storage import Storage
from curate.engine.state import Options
from curate.engine.units.step import Planned

LEAST_FREE_BYTES = 64 << 20


def plan_source(node: Node, storage: Storage, stage: Source, options: Options) -> Planned:
    """The portions to read, and the share of rows to take inside each. `stage` is the node's, after `setup` if it has
    ports. Raises InputError or PreflightError."""
    try:
        portions = stage.plan()
        planned = sampled(stage, portions, options.share(portions))
    except (InputError, PreflightError) as error:
        raise node.located(error) from None
    _check_space(node, stage, storage, *planned)
    return planned


def sampled(stage: Source, portions: list[Portion], fraction: float) -> tuple[list[Portion], float]:
    """(portions of a canary run, chosen by hash; share of rows to take inside each)."""
    if fraction >= 1.0 or not portions:
        return portions, 1.0
    count = max(1, math.ceil(fraction * len(portions)))
    order = sorted(range(len(portions)), key=lambda i: digest([stage.namespace, portions[i].content]))
    inside = min(1.0, fraction * len(portions) / count)
    chosen = [portions[i] for i in sorted(order[:count])]
    skipped = joined_skips(*(portion.skipped for portion in portions))
    return [replace(chosen[0], skipped=skipped), *(replace(portion, skipped={}) for portion in chosen[1:])], inside


def record_paths(stage: Source, portions: Iterable[Portion], inside: float) -> list[str]:
    """Paths of the records that map portions to their shards."""
    same: dict[str, Any] = {"op": stage.op, "version": stage.version, "parameters": stage.parameters()}
    if inside < 1.0:
        same["inside"] = inside
    digests = (digest(same | {"portion": portion.content}) for portion in portions)
    return [f"pools/{stage.namespace}/portions/{name}.json" for name in digests]


def _check_space(node: Node, stage: Source, storage: Storage, portions: list[Portion], inside: float) -> None:
    """Check the disk space for the bytes that the source copies; other stages write little in comparison."""
    if not storage.local:
        return
    base = f"pools/{stage.namespace}/portions/"
    existing = storage.list(base.rstrip("/"))
    paths = record_paths(stage, portions, inside)
    missing = [p for p, path in zip(portions, paths, strict=True) if path.removeprefix(base) not in existing]
    need = int(inside * sum(portion.bytes for portion in missing)) + LEAST_FREE_BYTES
    place = next(folder for folder in (Path(storage.root), *Path(storage.root).parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < need:
        raise PreflightError(
            f"{node.place or 'pipeline'}: {node.name}: {storage.url} has {free:,} bytes free, {stage.op} needs "
            f"{need:,}; free disk space or choose another workspace"
        )
