"""Starts the ranks of a training through Ray in place of torchrun: `distill train RECIPE --ray 8`, or `--ray 4-8`.

Thin on purpose: each worker runs the same command as a rank of torchrun does. What is lost with a worker, or when an
elastic group changes its size, is what came after the last checkpoint of the run's folder, which all workers must see.
"""

from __future__ import annotations

import os
import re
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from rich.console import Console

from curate.core.errors import CurateError, PreflightError, RecipeError
from distill import commands
from distill.folder import RunFolder, placed
from distill.recipe import Recipe, parse_recipe

try:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
except ImportError as error:
    raise PreflightError("--ray: Ray Train is not installed; install ray[train] of Ray's own version") from error

RESTARTS = 3
"""Of the whole group, after a worker was lost or an error was raised."""


def train_on_ray(recipe: Recipe, workers: str, console: Console) -> RunFolder:
    """workers: a number, or `least-most`: as many as the cluster has room for, more or fewer while it runs.

    Returns at once for a finished run. Raises RecipeError for another form, CurateError with what a rank has said.
    """
    group = _group(workers)
    run, fingerprint, blends = commands.located(recipe)
    if run.finished(fingerprint) is None:
        values = placed(recipe, blends)
        values["run"]["folder"] = str(run.path)
        if not ray.is_initialized():
            ray.init()  # the cluster that RAY_ADDRESS names or that this machine belongs to, else one of its own
        trainer = TorchTrainer(
            _rank,
            train_loop_config=values,
            torch_config=TorchConfig(timeout_s=int(recipe.run.timeout_seconds)),
            scaling_config=ScalingConfig(num_workers=group, use_gpu=_on_gpu(recipe)),
            run_config=RunConfig(
                name=run.path.name, storage_path=str(run.path / "ray"), failure_config=FailureConfig(RESTARTS)
            ),
        )
        try:
            trainer.fit()
        except Exception as error:  # each kind of Ray's failures has one of its own
            raise CurateError(f"run {run.path}: {_said(error)}") from error
    return commands.train(recipe, console)


def _rank(values: dict[str, Any]) -> None:
    commands.train(parse_recipe(values, "recipe"), Console())


def _group(workers: str) -> int | tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", workers)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise RecipeError(f"--ray {workers}: expected a number of workers, or least-most, as in 8 or 4-8")
    return (least, most) if found and found[2] else least


def _on_gpu(recipe: Recipe) -> bool:
    if recipe.run.device == "auto":
        return ray.cluster_resources().get("GPU", 0) > 0
    return recipe.run.device.startswith("cuda")


def _said(error: BaseException) -> str:
    """What the first rank that failed has raised, in a line."""
    failures = getattr(error, "worker_failures", None) or {}
    inner: BaseException = next(iter(failures.values()), error)
    while inner.__cause__ is not None and not isinstance(inner, CurateError):
        inner = inner.__cause__
    said = inner if isinstance(inner, CurateError) else f"{type(inner).__name__}: {inner}"
    return " ".join(str(said).split())[:600]
