"""`distill train RECIPE --ray 8`, or `--ray 4-8`: starts the ranks of a training through Ray instead of torchrun.

Each worker runs the same command as a rank of torchrun. If a worker is lost or an elastic group changes its size,
training resumes from the last checkpoint in the run's folder, which must be on a disk that all workers share.
"""

from __future__ import annotations

import os
import re
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # workers keep the working folder they were started in

import ray
from rich.console import Console

from curate.core.errors import CurateError, PreflightError, RecipeError
from distill.commands.train import locate_run, prepared, train
from distill.parallel import LostRankError
from distill.recipe import Recipe, parse_recipe
from distill.training.run_folder import RunFolder, with_dataset_urls

try:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
except ImportError as error:
    raise PreflightError("--ray: Ray Train is not installed; install ray[train] of the same version as Ray") from error

RESTARTS = 3
"""Restarts of the whole group after a worker was lost. An error that a rank raised itself is not retried."""


def train_on_ray(recipe: Recipe, workers: str, console: Console) -> RunFolder:
    """workers: a number, or `least-most` for an elastic group that uses the room the cluster has while it runs.

    Returns at once for a finished run. Raises RecipeError for any other form, CurateError with the error of a rank.
    """
    group, recipe = _group_size(workers), prepared(recipe, console)
    run, fingerprint, mixtures = locate_run(recipe)
    if run.finished(fingerprint) is None:
        values = with_dataset_urls(recipe, mixtures)
        values["run"]["folder"] = str(run.path)
        _join_cluster()
        trainer = TorchTrainer(
            _train_rank,
            train_loop_config=values,
            torch_config=TorchConfig(timeout_s=int(recipe.run.timeout_seconds)),
            scaling_config=ScalingConfig(num_workers=group, use_gpu=_on_gpu(recipe)),  # type: ignore[arg-type]  # a pair
            run_config=RunConfig(
                name=run.path.name, storage_path=str(run.path / "ray"), failure_config=FailureConfig(0)
            ),
        )
        _fit(trainer, run, console)
    return train(recipe, console)


def _join_cluster() -> None:
    """Connect to the cluster of RAY_ADDRESS or of this machine, or start one."""
    try:
        ray.init(ignore_reinit_error=True)
    except Exception as error:  # Ray raises plain exceptions if it does not start within 30 s
        raise CurateError(
            f"--ray: cannot reach or start Ray ({_one_line(error)}); check RAY_ADDRESS, or try again when the machine "
            f"is less busy"
        ) from error


def _fit(trainer: TorchTrainer, run: RunFolder, console: Console) -> None:
    for restarts in reversed(range(RESTARTS + 1)):
        try:
            trainer.fit()
            return
        except Exception as error:  # Ray wraps a worker's failure in several exception types without a common base
            cause = _root_cause(error)
            if not restarts or not _is_lost_worker(cause):
                raise CurateError(f"run {run.path}: {_one_line(cause)}") from error
            console.print(
                f"lost a worker ({_one_line(cause)}); resuming from {run.resume_point()}, "
                f"{restarts} of {RESTARTS} restarts left",
                highlight=False, soft_wrap=True, markup=False,
            )  # fmt: skip


def _train_rank(values: dict[str, Any]) -> None:
    train(parse_recipe(values, "recipe"), Console())


def _group_size(workers: str) -> int | tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", workers)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        raise RecipeError(f"--ray {workers}: expected a number of workers, or least-most, as in 8 or 4-8")
    return (least, most) if match and match[2] else least


def _on_gpu(recipe: Recipe) -> bool:
    if recipe.run.device == "auto":
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        return resources.get("GPU", 0) > 0
    return recipe.run.device.startswith("cuda")


def _root_cause(error: BaseException) -> BaseException:
    """The error that ended the group: a rank's own error before one about a lost rank."""
    failures = getattr(error, "worker_failures", None) or {0: getattr(error, "controller_failure", error)}
    inner = [_innermost(failures[rank]) for rank in sorted(failures)]
    own = [item for item in inner if not _is_lost_worker(item)]
    return ([item for item in own if isinstance(item, CurateError)] or own or inner)[0]


def _is_lost_worker(error: BaseException) -> bool:
    """Whether a worker is gone, reported by another rank or by one of Ray's own errors."""
    return isinstance(error, LostRankError) or type(error).__module__.partition(".")[0] == "ray"


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None and not isinstance(error, CurateError):
        error = error.__cause__
    return error


def _one_line(error: BaseException) -> str:
    text = error if isinstance(error, CurateError) else f"{type(error).__name__}: {error}"
    return " ".join(str(text).split())[:600]
