"""Starts the ranks of a training through Ray in place of torchrun: `distill train RECIPE --ray 8`, or `--ray 4-8`.

Thin on purpose: each worker runs the same command as a rank of torchrun does. What is lost with a worker, or when an
elastic group changes its size, is what came after the last checkpoint of the run's folder, which all workers must see.
"""

from __future__ import annotations

import os
import re
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # workers stay where they are started

import ray
from rich.console import Console

from curate.core.errors import CurateError, PreflightError, RecipeError
from distill import commands
from distill.recipe import Recipe, parse_recipe
from distill.recipe.places import anchored
from distill.training.parallel import LostRankError
from distill.training.run_folder import RunFolder, placed

try:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
except ImportError as error:
    raise PreflightError("--ray: Ray Train is not installed; install ray[train] of Ray's own version") from error

RESTARTS = 3
"""Of the whole group, after a worker was lost. What a rank has raised itself it would raise again."""


def train_on_ray(recipe: Recipe, workers: str, console: Console) -> RunFolder:
    """workers: a number, or `least-most`: as many as the cluster has room for, more or fewer while it runs.

    Returns at once for a finished run. Raises RecipeError for another form, CurateError with what a rank has said.
    """
    group, recipe = _group(workers), anchored(recipe)
    run, fingerprint, blends = commands.located(recipe)
    if run.finished(fingerprint) is None:
        values = placed(recipe, blends)
        values["run"]["folder"] = str(run.path)
        _join_cluster()
        trainer = TorchTrainer(
            _rank,
            train_loop_config=values,
            torch_config=TorchConfig(timeout_s=int(recipe.run.timeout_seconds)),
            scaling_config=ScalingConfig(num_workers=group, use_gpu=_on_gpu(recipe)),
            run_config=RunConfig(
                name=run.path.name, storage_path=str(run.path / "ray"), failure_config=FailureConfig(0)
            ),
        )
        _fit(trainer, run, console)
    return commands.train(recipe, console)


def _join_cluster() -> None:
    """The one that RAY_ADDRESS names or that this machine belongs to, else one of its own."""
    try:
        ray.init(ignore_reinit_error=True)
    except Exception as error:  # Ray raises plain ones when it does not start in its 30 s
        raise CurateError(
            f"--ray: Ray cannot be reached or started ({_said(error)}); look at RAY_ADDRESS, or try again when the "
            f"machine is less busy"
        ) from error


def _fit(trainer: TorchTrainer, run: RunFolder, console: Console) -> None:
    for left in reversed(range(RESTARTS + 1)):
        try:
            trainer.fit()
            return
        except Exception as error:  # each kind of Ray's failures has one of its own
            inner = _first(error)
            if not left or not _lost(inner):
                raise CurateError(f"run {run.path}: {_said(inner)}") from error
            console.print(
                f"a worker was lost ({_said(inner)}); going on from {run.kept()}, {left} of {RESTARTS} restarts left",
                highlight=False, soft_wrap=True, markup=False,
            )  # fmt: skip


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


def _first(error: BaseException) -> BaseException:
    """What began it: of all ranks, one that raised an error of its own before one that has lost another rank."""
    failures = getattr(error, "worker_failures", None) or {0: getattr(error, "controller_failure", error)}
    inner = [_innermost(failures[rank]) for rank in sorted(failures)]
    own = [item for item in inner if not _lost(item)]
    return ([item for item in own if isinstance(item, CurateError)] or own or inner)[0]


def _lost(error: BaseException) -> bool:
    """Whether a worker is gone: another rank says so, or Ray does, in one of its own errors."""
    return isinstance(error, LostRankError) or type(error).__module__.partition(".")[0] == "ray"


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None and not isinstance(error, CurateError):
        error = error.__cause__
    return error


def _said(error: BaseException) -> str:
    """In a line."""
    said = error if isinstance(error, CurateError) else f"{type(error).__name__}: {error}"
    return " ".join(str(said).split())[:600]
