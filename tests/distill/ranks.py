"""Process groups as torchrun starts them: `python -m tests.distill.ranks OUT`, with OUT/jobs.yaml.

One process imports torch and runs torchrun's agent; each rank is a fork of it, so that starting a group takes little
time. The groups run in turn:

steps     runs the steps of each recipe of the jobs (name -> values) and writes OUT/NAME-RANK.pt: for each step the sums
          over the global batch and the summed gradients, at the end the standardisers and the weights; after step
          SAVED, a checkpoint in OUT/NAME-run
commands  runs each of the jobs (name -> arguments of `distill`), with {rank} filled in. OUT/NAME-RANK.txt has a rank's
          output, OUT/codes.yaml the exit codes of failed ranks. In the jobs KILLED the second rank is killed during a
          step; a job of LOGGED adds the samples that each step saw to OUT/LOGGED-RANK.jsonl
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # imported before the forks, so that it is loaded once
import torch.utils.tensorboard
import yaml
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import distill.evaluation.runs
import distill.training.run  # noqa: F401
from distill.cli import main
from distill.context import StageContext
from distill.parallel import World, join_world
from distill.recipe import parse_recipe
from distill.samples.sources.mixture import open_mixture
from distill.training.checkpoint import save_checkpoint
from distill.training.run_folder import RunFolder
from distill.training.sharding import full_state, full_tensor
from distill.training.trainer import Trainer
from tests.distill.routing import Routing, record_routing, replay_routing

SAVED, KILLED = 2, {"killed": 2, "logged": 14, "logged again": 28}
"""Steps before which a job is killed."""
LOGGED = "logged"


def trainer_of(values: dict[str, Any], world: World) -> Trainer:
    recipe = parse_recipe(values, "test")
    context = StageContext.of(recipe, open_mixture(recipe.data), world)
    if recipe.student.text is not None:
        context.tokenizer = context.fit_tokenizer()
    context.find_classes({})
    return Trainer(context, "fingerprint")


def take_steps(
    values: dict[str, Any], world: World, *, routing: list[Routing] | None = None, save: Path | None = None
) -> dict[str, Any]:
    """routing: per step, to replay; recorded if None. save: folder for a checkpoint after step SAVED."""
    trainer = trainer_of(values, world)
    recipe, taken = trainer.context.recipe, []
    for number, share in enumerate(islice(trainer.loader, recipe.steps)):
        routed: Any = nullcontext()
        if recipe.student.moe is not None:
            student = trainer.student
            routed = record_routing(student) if routing is None else replay_routing(student, routing[number])
        with routed as recorded:
            sums, _ = trainer.update(share)
        given = {name: item.grad for name, item in trainer.student.named_parameters() if item.grad is not None}
        grads = {name: full_tensor(grad).clone() for name, grad in given.items()}
        taken.append({"sums": sums, "grads": grads, "own": len(share.images), "routing": recorded})
        if save is not None and trainer.step == SAVED:
            run = RunFolder(save)
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            save_checkpoint(run, trainer.values(), trainer.tensors(), world, 2)
    standardisers = [standardiser.state() for standardiser in trainer.standardisers]
    weights = {name: value.clone() for name, value in full_state(trainer.student.state_dict()).items()}
    return {
        "steps": taken,
        "standards": standardisers,
        "student": weights,
        "averaged": trainer.final_student().state_dict(),
    }


def take_all(jobs: dict[str, Any], out: Path) -> None:
    with join_world("cpu") as world:
        for name, values in jobs.items():
            place = out / f"{name}-routing.pt"
            routing = torch.load(place) if place.exists() else None
            done = take_steps(values, world, routing=routing, save=out / f"{name}-run")
            torch.save(done, out / f"{name}-{world.rank}.pt")


def log_samples(out: Path) -> Callable[..., Any]:
    """Log what each step sees: (step, sequence, key, text) of this rank's images, in order. Returns the former
    `Trainer.update`."""
    update = Trainer.update

    def update_and_log(trainer: Trainer, share: Any, **kwargs: Any) -> Any:
        key = trainer.context.dataset.key
        assert not share.skipped
        pairs = zip(share.sequence, share.images, strict=True)
        seen = [[sequence, key(image.row), image.text] for sequence, image in pairs]
        with (out / f"{LOGGED}-{trainer.context.world.rank}.jsonl").open("a") as file:
            file.write(json.dumps([trainer.step + 1, trainer.context.world.size, seen]) + "\n")
        return update(trainer, share, **kwargs)

    Trainer.update = update_and_log  # type: ignore[method-assign]
    return update


def command(name: str, arguments: list[str], out: Path) -> None:
    """Run the command line as if it were a separate process."""
    rank = os.environ["RANK"]
    output = os.open(out / f"{name}-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.argv[:] = ["distill", *(item.replace("{rank}", rank) for item in arguments)]
    if name in KILLED and rank == "1":
        update = Trainer.update

        def update_or_die(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
            if trainer.step == KILLED[name]:
                os.kill(os.getpid(), signal.SIGKILL)
            return update(trainer, *args, **kwargs)

        Trainer.update = update_or_die  # type: ignore[method-assign]
    if name.startswith(LOGGED):
        log_samples(out)
    main()


def in_two_ranks(work: Callable[..., None], *args: Any) -> list[int]:
    """Run a function in two ranks; returns the exit codes of the ranks that failed."""
    config = LaunchConfig(
        1, 1, 2, run_id="test", rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1",
        max_restarts=0, start_method="fork", monitor_interval=0.05,
    )  # fmt: skip
    try:
        elastic_launch(config, work)(*args)
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
