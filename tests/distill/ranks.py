"""What ranks do, as torchrun starts them: `python -m tests.distill.ranks OUT`, with OUT/jobs.yaml.

One process imports torch; torchrun's own agent then runs in it, and each rank is a fork, so that a group of ranks costs
what it computes. The groups, one after another:

steps     takes the steps of each recipe of the jobs (name -> values) and writes OUT/NAME-RANK.pt: per step the sums
          over the global batch and the gradients after they were added up, in the end the standards and the weights;
          after step SAVED, a checkpoint in OUT/NAME-run
commands  each of the jobs (name -> arguments of `distill`), with {rank} filled in. What a rank says is in
          OUT/NAME-RANK.txt; OUT/codes.yaml has the exit codes of those that failed. In the job KILLED the second rank
          is killed in the middle of a step
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # whatever a rank would load is loaded once
import torch.utils.tensorboard
import yaml
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import distill.evaluation.runs
import distill.training.train  # noqa: F401
from distill.cli import main
from distill.models.routing import Routing, record_routing, replay_routing
from distill.recipe import parse_recipe
from distill.samples.sources.mixture import open_blend
from distill.training.checkpoint import save_checkpoint
from distill.training.parallel import World, join_world
from distill.training.run_folder import RunFolder
from distill.training.sharding import whole, whole_state
from distill.training.trainer import Trainer
from distill.workbench import Workbench

SAVED, KILLED = 2, "killed"


def trainer_of(values: dict[str, Any], world: World) -> Trainer:
    recipe = parse_recipe(values, "test")
    bench = Workbench.of(recipe, open_blend(recipe.data), world)
    if recipe.student.text is not None:
        bench.tokenizer = bench.fitted_tokenizer()
    return Trainer(bench, "fingerprint")


def take_steps(
    values: dict[str, Any], world: World, *, routing: list[Routing] | None = None, save: Path | None = None
) -> dict[str, Any]:
    """routing: of each step, to be replayed; without it, it is recorded. save: folder of a checkpoint after SAVED."""
    trainer = trainer_of(values, world)
    recipe, taken = trainer.bench.recipe, []
    for number, share in enumerate(islice(trainer.loader, recipe.steps)):
        context: Any = nullcontext()
        if recipe.student.moe is not None:
            student = trainer.student
            context = record_routing(student) if routing is None else replay_routing(student, routing[number])
        with context as recorded:
            sums, _ = trainer.take(share)
        grads = {name: whole(item.grad).clone() for name, item in trainer.student.named_parameters()}
        taken.append({"sums": sums, "grads": grads, "own": len(share.pictures), "routing": recorded})
        if save is not None and trainer.step == SAVED:
            run = RunFolder(save)
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            save_checkpoint(run, trainer.values(), trainer.tensors(), world, 2)
    standards = [standard.state() for standard in trainer.standards]
    weights = {name: value.clone() for name, value in whole_state(trainer.student.state_dict()).items()}
    return {"steps": taken, "standards": standards, "student": weights, "averaged": trainer.trained().state_dict()}


def take_all(jobs: dict[str, Any], out: Path) -> None:
    with join_world("cpu") as world:
        for name, values in jobs.items():
            place = out / f"{name}-routing.pt"
            routing = torch.load(place) if place.exists() else None
            done = take_steps(values, world, routing=routing, save=out / f"{name}-run")
            torch.save(done, out / f"{name}-{world.rank}.pt")


def command(name: str, arguments: list[str], out: Path) -> None:
    """The command line, as a process of its own would have it."""
    rank = os.environ["RANK"]
    said = os.open(out / f"{name}-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(said, stream)
    sys.argv[:] = ["distill", *(item.replace("{rank}", rank) for item in arguments)]
    if name == KILLED and rank == "1":
        take = Trainer.take

        def and_die(trainer: Trainer, *given: Any, **named: Any) -> Any:
            if trainer.step == SAVED:
                os.kill(os.getpid(), signal.SIGKILL)
            return take(trainer, *given, **named)

        Trainer.take = and_die  # type: ignore[method-assign]
    main()


def in_two_ranks(work: Callable[..., None], *given: Any) -> list[int]:
    """Exit codes of ranks that failed."""
    config = LaunchConfig(
        1, 1, 2, run_id="test", rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1",
        max_restarts=0, start_method="fork", monitor_interval=0.05,
    )  # fmt: skip
    try:
        elastic_launch(config, work)(*given)
    except ChildFailedError as error:
        return [failure.exitcode for failure in error.failures.values()]
    return []


if __name__ == "__main__":
    out = Path(sys.argv[1])
    jobs = yaml.safe_load((out / "jobs.yaml").read_text())
    torch.set_num_threads(1)
    assert in_two_ranks(take_all, jobs["steps"], out) == []
    codes = {name: in_two_ranks(command, name, arguments, out) for name, arguments in jobs["commands"].items()}
    (out / "codes.yaml").write_text(yaml.safe_dump(codes))
