"""Checks before anything is computed: secrets, weights, targets and disk space."""

from __future__ import annotations

import contextlib
import math
import shutil
from pathlib import Path

from curate.core.contracts import Portion, Secret, Select, Source
from curate.core.errors import InputError, PreflightError
from curate.core.hashing import digest
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.store.storage import Storage
from curate.engine.backends.local import LocalBackend
from curate.engine.workers.scheduler import Scheduler

Planned = dict[str, tuple[list[Portion], float]]
"""Source -> its portions, and the share of rows to take inside each."""
LEAST_FREE_BYTES = 64 << 20


def preflight(pipeline: Pipeline, storage: Storage, fraction: float = 1.0, backend: Scheduler | None = None) -> Planned:
    """Plan every source and check every stage. Secrets are read in a worker of `backend`, without one in this process.
    Raises PreflightError or RecipeError, naming the stage."""
    if backend is None:
        with contextlib.closing(Scheduler(LocalBackend())) as workers:
            check_secrets(pipeline, workers)
    else:
        check_secrets(pipeline, backend)
    for node in pipeline.nodes.values():
        problems = node.stage.preflight()
        if problems:
            raise PreflightError(f"{node.place or 'pipeline'}: {node.name}: {problems[0]}")
    planned: Planned = {}
    for node in pipeline.nodes.values():
        if isinstance(node.stage, Source):
            try:
                portions = node.stage.plan()
            except (InputError, PreflightError) as error:
                raise node.located(error) from None
            planned[node.name] = sampled(node.stage, portions, fraction)
            _check_space(node, storage, *planned[node.name])
    for node in pipeline.nodes.values():
        pool = pipeline.pool_of(node.name)
        if isinstance(node.stage, Select) and pool in planned:  # the number of samples that a Derive makes is unknown
            _check_target(node, node.stage, *planned[pool])
    return planned


def check_secrets(pipeline: Pipeline, backend: Scheduler) -> None:
    """Check that every secret can be read in one worker with the stage's resources. On a cluster, the other nodes are
    not checked, nor is this process, which may read secrets too (a source's plan, a fit). No value is sent back. Raises
    PreflightError."""
    for node in pipeline.nodes.values():
        place, secrets = f"{node.place or 'pipeline'}: {node.name}", node.stage.secrets()
        for outcome in backend.map(_unreadable, [secrets] if secrets else [], node.stage.resources()):
            if outcome.error:
                raise PreflightError(f"{place}: the worker reading its secrets failed: {outcome.error}")
            for name, problem in outcome.value.items():
                raise PreflightError(f"{place}.{name}: {problem}")


def _unreadable(secrets: dict[str, Secret]) -> dict[str, str]:
    """Parameter -> why its secret cannot be read, in this process."""
    return {name: problem for name, secret in secrets.items() if (problem := secret.problem())}


def sampled(stage: Source, portions: list[Portion], fraction: float) -> tuple[list[Portion], float]:
    """(portions of a canary run, chosen by hash; share of rows to take inside each)."""
    if fraction >= 1.0 or not portions:
        return portions, 1.0
    count = max(1, math.ceil(fraction * len(portions)))
    order = sorted(range(len(portions)), key=lambda i: digest([stage.namespace, portions[i].content]))
    inside = min(1.0, fraction * len(portions) / count)
    return [portions[i] for i in sorted(order[:count])], inside


def record_path(stage: Source, portion: Portion, inside: float) -> str:
    """Path of the record that maps a portion to its shard."""
    value = {"op": stage.op, "version": stage.version, "parameters": stage.parameters(), "portion": portion.content}
    if inside < 1.0:
        value["inside"] = inside
    return f"pools/{stage.namespace}/portions/{digest(value)}.json"


def _check_target(node: Node, stage: Select, portions: list[Portion], inside: float) -> None:
    target = stage.target_rows()
    if target is None or inside < 1.0 or any(portion.rows is None for portion in portions):
        return
    rows = sum(portion.rows or 0 for portion in portions)
    if target > rows * stage.multiplier:
        raise node.fail(
            f"target {target:,} is more than {rows * stage.multiplier:,} ({rows:,} rows x multiplier "
            f"{stage.multiplier}); lower the target or raise the multiplier"
        )


def _check_space(node: Node, storage: Storage, portions: list[Portion], inside: float) -> None:
    """Check the disk space for the bytes that the source copies; other stages write little in comparison."""
    if not storage.local:
        return
    assert isinstance(node.stage, Source)
    base = f"pools/{node.stage.namespace}/portions/"
    existing = storage.list(base.rstrip("/"))
    missing = [p for p in portions if record_path(node.stage, p, inside).removeprefix(base) not in existing]
    need = int(inside * sum(portion.bytes for portion in missing)) + LEAST_FREE_BYTES
    place = next(folder for folder in (Path(storage.root), *Path(storage.root).parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < need:
        raise PreflightError(
            f"{node.place or 'pipeline'}: {node.name}: {storage.url} has {free:,} bytes free, {node.stage.op} needs "
            f"{need:,}; free disk space or choose another workspace"
        )
