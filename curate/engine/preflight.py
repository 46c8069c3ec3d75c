"""Checks before anything is computed: secrets, weights, endpoints, targets and disk space."""

from __future__ import annotations

import contextlib

from curate.core.contracts import Secret, Stage
from curate.core.errors import PreflightError, some
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import Storage
from curate.engine.backends.local import LocalBackend
from curate.engine.requests import preflight as endpoints
from curate.engine.state import Options
from curate.engine.steps import step_of
from curate.engine.units.step import Planned
from curate.engine.workers.scheduler import Scheduler

Inputs = dict[str, Planned]
"""Source (without ports) or Collect -> its portions, and the share of rows to take inside each."""


def preflight(
    pipeline: Pipeline,
    storage: Storage,
    options: Options,
    backend: Scheduler | None = None,
    on_workers: bool = True,
) -> Inputs:
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
    steps = [step_of(node) for node in pipeline.nodes.values()]
    inputs = {step.node.name: step.portions(storage, options) for step in steps}
    planned = {name: portions for name, portions in inputs.items() if portions is not None}
    for step in steps:
        step.check(pipeline, planned)
    return planned


def cautions(name: str, pipeline: Pipeline, planned: Inputs) -> list[str]:
    """What is probably a mistake in a stage that can run, a line each."""
    portions = planned.get(name, ((), 1.0))[0]
    folders = [folder for portion in portions for folder in portion.unread]
    named = some(folders)
    unread = f"cannot read folder {named}: none of its files is imported; check permissions, and links out of `path`"
    return [*pipeline.cautions(name), *([unread] if folders else [])]


def check_workers(pipeline: Pipeline, backend: Scheduler) -> None:
    """Check that one worker with the stage's resources can read its secrets and has what it needs. It checks neither
    the other nodes of a cluster nor this process, which may read secrets too (a source's plan, a fit). Workers send no
    value back. Raises PreflightError."""
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
        for outcome in backend.map(endpoints.problems, [stage] if stage.asks() else [], stage.resources()):
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
