"""Checks before anything is computed: secrets, weights, targets and disk space."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from curate.core.contracts import AsyncMap, Collect, Portion, Secret, Select, Source, Stage
from curate.core.errors import InputError, PreflightError
from curate.core.hashing import digest
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.store.storage import Storage
from curate.engine.backends.local import LocalBackend
from curate.engine.requests import preflight as endpoints
from curate.engine.workers.scheduler import Scheduler

Planned = dict[str, tuple[list[Portion], float]]
"""Source (without ports) or Collect -> its portions, and the share of rows to take inside each."""
LEAST_FREE_BYTES = 64 << 20


def preflight(
    pipeline: Pipeline,
    storage: Storage,
    fraction: float = 1.0,
    backend: Scheduler | None = None,
    on_workers: bool = True,
) -> Planned:
    """Plan every source and check every stage. Secrets are read in a worker of `backend`, without one in this process,
    and not at all without `on_workers`. Raises PreflightError or RecipeError, naming the stage."""
    for node in pipeline.nodes.values():
        problems = node.stage.preflight()
        if problems:
            raise PreflightError(f"{node.place or 'pipeline'}: {node.name}: {problems[0]}")
    if on_workers and backend is None:
        with contextlib.closing(Scheduler(LocalBackend())) as workers:
            check_workers(pipeline, workers)
    elif on_workers and backend is not None:
        check_workers(pipeline, backend)
    planned: Planned = {}
    for node in pipeline.nodes.values():
        if isinstance(node.stage, (Collect, Source)) and not node.ports:
            planned[node.name] = plan_source(node, storage, node.stage, fraction)
    for node in pipeline.nodes.values():
        pool = pipeline.pool_of(node.name)
        if isinstance(node.stage, Select) and pool in planned:  # the number of samples that a Derive makes is unknown
            _check_target(node, node.stage, *planned[pool])
    return planned


def plan_source(node: Node, storage: Storage, stage: Collect | Source, fraction: float) -> tuple[list[Portion], float]:
    """The portions to read, and the share of rows to take inside each. `stage` is the node's, after `setup` if it has
    ports. Raises InputError or PreflightError."""
    try:
        portions = stage.plan()
    except (InputError, PreflightError) as error:
        raise node.located(error) from None
    if isinstance(stage, Collect):  # a canary run reads the whole input: the portions depend on all of it
        return portions, 1.0
    planned = sampled(stage, portions, fraction)
    _check_space(node, storage, *planned)
    return planned


def cautions(name: str, pipeline: Pipeline, planned: Planned) -> list[str]:
    """What is probably a mistake in a stage that can run, a line each."""
    folders = [folder for portion in planned.get(name, ((), 1.0))[0] for folder in portion.unread]
    named = ", ".join(folders[:3]) + (f" and {len(folders) - 3:,} more" if len(folders) > 3 else "")
    unread = f"cannot read folder {named}: none of its files is imported; check permissions, and links out of `path`"
    return [*pipeline.cautions(name), *([unread] if folders else [])]


def check_workers(pipeline: Pipeline, backend: Scheduler) -> None:
    """Check that one worker with the stage's resources can read its secrets and has what it needs. On a cluster, the
    other nodes are not checked, nor is this process, which may read secrets too (a source's plan, a fit). No value is
    sent back. Raises PreflightError."""
    for node in pipeline.nodes.values():
        place, stage = f"{node.place or 'pipeline'}: {node.name}", node.stage
        checked = stage.secrets() or type(stage).preflight_on_worker is not Stage.preflight_on_worker
        for outcome in backend.map(_worker_problems, [stage] if checked else [], stage.resources()):
            if outcome.error:
                raise PreflightError(f"{place}: the worker that checks it failed: {outcome.error}")
            for name, problem in outcome.value:
                raise PreflightError(f"{place}{name and '.'}{name}: {problem}")


def check_endpoints(pipeline: Pipeline, storage: Storage, backend: Scheduler) -> list[str]:
    """Check that a worker reaches the endpoints that stages ask, with their keys and models. Raises PreflightError.

    If the workspace has facts of the op, the run may need no request, and the endpoint may have been stopped: what is
    wrong is then returned, one line each, and the first request ends the run."""
    warnings = []
    for node in pipeline.nodes.values():
        place, stage = f"{node.place or 'pipeline'}: {node.name}", node.stage
        asks = isinstance(stage, AsyncMap) and stage.asks()
        for outcome in backend.map(endpoints.problems, [stage] if asks else [], stage.resources()):
            found = [f"the worker that checks it failed: {outcome.error}"] if outcome.error else outcome.value
            if found and not storage.exists(f"facts/{stage.op}"):
                raise PreflightError(f"{place}: {found[0]}")
            warnings += [f"{place}: {problem}" for problem in found]
    return warnings


def _worker_problems(stage: Stage) -> list[tuple[str, str]]:
    """(parameter or "", problem), in this process."""
    return [*_unreadable(stage.secrets()).items(), *(("", problem) for problem in stage.preflight_on_worker())]


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


def record_paths(stage: Source, portions: Iterable[Portion], inside: float) -> list[str]:
    """Paths of the records that map portions to their shards."""
    same: dict[str, Any] = {"op": stage.op, "version": stage.version, "parameters": stage.parameters()}
    if inside < 1.0:
        same["inside"] = inside
    digests = (digest(same | {"portion": portion.content}) for portion in portions)
    return [f"pools/{stage.namespace}/portions/{name}.json" for name in digests]


def _check_target(node: Node, stage: Select, portions: list[Portion], inside: float) -> None:
    target = stage.target_rows()
    if target is None or inside < 1.0 or any(portion.rows is None for portion in portions):
        return
    rows = sum(portion.rows or 0 for portion in portions)
    if target > rows and stage.target_name != "target":
        raise node.fail(f"{stage.target_name} {target:,} is more than the {rows:,} rows of its pool; lower it")
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
    paths = record_paths(node.stage, portions, inside)
    missing = [p for p, path in zip(portions, paths, strict=True) if path.removeprefix(base) not in existing]
    need = int(inside * sum(portion.bytes for portion in missing)) + LEAST_FREE_BYTES
    place = next(folder for folder in (Path(storage.root), *Path(storage.root).parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < need:
        raise PreflightError(
            f"{node.place or 'pipeline'}: {node.name}: {storage.url} has {free:,} bytes free, {node.stage.op} needs "
            f"{need:,}; free disk space or choose another workspace"
        )
