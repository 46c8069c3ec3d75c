"""Checks before anything is computed: secrets, weights, targets, disk space and fields of `meta`."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from curate.core.contracts import AsyncMap, Collect, Portion, Secret, Select, Source, Stage
from curate.core.errors import InputError, PreflightError, did_you_mean
from curate.core.hashing import digest
from curate.core.nouns.pools import Shard
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.rows import Rows
from curate.core.store.storage import Storage
from curate.engine.backends.local import LocalBackend
from curate.engine.context import Context
from curate.engine.requests import preflight as endpoints
from curate.engine.state import Options
from curate.engine.units.common import fetched
from curate.engine.workers.scheduler import Scheduler
from curate.kernels.meta import META, field_of, fields_of

Planned = dict[str, tuple[list[Portion], float]]
"""Source (without ports) or Collect -> its portions, and the share of rows to take inside each."""
LEAST_FREE_BYTES = 64 << 20
SAMPLED = 64
"""Shards that are searched for fields of `meta`, chosen by hash; the others for what these lack."""
FEW = 0.5
"""Share of the rows below which a field is worth a warning."""


def preflight(
    pipeline: Pipeline,
    storage: Storage,
    options: Options,
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
            planned[node.name] = plan_source(node, storage, node.stage, options)
    for node in pipeline.nodes.values():
        pool = pipeline.pool_of(node.name)
        if isinstance(node.stage, Select) and pool in planned:  # the number of samples that a Derive makes is unknown
            _check_target(node, node.stage, *planned[pool])
    return planned


def plan_source(node: Node, storage: Storage, stage: Collect | Source, options: Options) -> tuple[list[Portion], float]:
    """The portions to read, and the share of rows to take inside each. `stage` is the node's, after `setup` if it has
    ports. Raises InputError or PreflightError."""
    try:
        portions = stage.plan()
        if isinstance(stage, Collect):  # a canary run reads the whole input: the portions depend on all of it
            return portions, 1.0
        planned = sampled(stage, portions, options.share(portions))
    except (InputError, PreflightError) as error:
        raise node.located(error) from None
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


# --- fields of `meta`: a misspelled one would be null in every row ---


def count_fields(task: tuple[Rows, Sequence[Shard], Sequence[str]]) -> Counter[str]:
    """Live rows of the shards that have each field; all live rows under ""."""
    (rows, shards, names), counts = task, Counter[str]()
    for table in fetched(lambda shard: rows.live_table(shard, ("meta",)), shards):
        metas = table.column("meta").to_pylist()
        counts[""] += len(metas)
        counts.update({name: sum(field_of(meta, name) is not None for meta in metas) for name in names})
    return counts


def check_fields(ctx: Context, nodes: Iterable[Node], rows: Rows, shards: Sequence[Shard], place: str) -> None:
    """Say which fields few rows have. Raises RecipeError for a field that none has. place: the stage of the rows."""
    named = [(node, name) for node in nodes for name in node.stage.meta_fields() if name.startswith(META)]
    if not named or not shards:
        return
    order = sorted(shards, key=lambda shard: digest([shard.id]))
    first, *rest = [tuple(order[at : at + SAMPLED]) for at in range(0, len(order), SAMPLED)]
    names = tuple(dict.fromkeys(name for _, name in named))
    sample = count_fields((ctx.placed(rows, first), first, names))
    lacking = tuple(name for name in names if not sample[name])
    tasks = [(ctx.placed(rows, part), part, lacking) for part in rest if lacking]
    whole = sum(ctx.must(count_fields, tasks, ctx.pipeline.nodes[place].stage, place), sample)
    for node, name in named:
        counts = whole if name in lacking else sample
        have, of = counts[name], counts[""]
        if of and not have:
            metas = rows.live_table(order[0], ("meta",)).column("meta").to_pylist()
            known = sorted({META + field for meta in metas for field in fields_of(meta)})
            hint = did_you_mean(name, known, f"the fields are {', '.join(known[:10]) or 'none'}")
            raise node.fail(f"none of the {of:,} rows of {place!r} has {name!r}; {hint}")
        if have < FEW * of:
            found = f"only {have:,} of {of:,} rows of {place!r} have {name} ({have / of:.2%})"
            seen = "" if name in lacking or not rest else f", in {len(first)} of {len(order):,} shards"
            ctx.progress.say(f"warning: {node.name}: {found}{seen}")
