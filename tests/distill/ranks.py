"""What ranks do, as torchrun starts them: `python -m tests.distill.ranks JOBS OUT PORT PORT ARGUMENT ...`.

In forks of this process, so that all share one import of torch: takes the steps of each recipe in the YAML file JOBS
(name -> values) and writes OUT/NAME-RANK.pt, per step the sums over the global batch and the gradients after they were
added up, in the end the standards and the weights; after step SAVED, a checkpoint in OUT/NAME-run. Then the second rank
is killed in the middle of a step, and the first one writes how that ended into OUT/lost.txt. Then each is
`python -m distill.cli ARGUMENT ...`.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import yaml

from curate.core.errors import CurateError
from distill.checkpoint import save_checkpoint
from distill.data.blend import open_blend
from distill.folder import RunFolder
from distill.models.routing import Routing, record_routing, replay_routing
from distill.parallel import World, join_world
from distill.recipe import parse_recipe
from distill.sharding import whole, whole_state
from distill.trainer import Trainer
from distill.workbench import Workbench

SAVED = 2


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


def take_all(jobs: str, out: Path) -> None:
    with join_world("cpu") as world:
        for name, values in yaml.safe_load(Path(jobs).read_text()).items():
            place = out / f"{name}-routing.pt"
            routing = torch.load(place) if place.exists() else None
            done = take_steps(values, world, routing=routing, save=out / f"{name}-run")
            torch.save(done, out / f"{name}-{world.rank}.pt")


def lose_one(jobs: str, out: Path) -> None:
    """Never returns."""
    try:
        with join_world("cpu", timeout_seconds=60) as world:
            trainer = trainer_of(yaml.safe_load(Path(jobs).read_text())["plain"], world)
            for share in trainer.loader:
                if trainer.step == 2 and not world.first:
                    os.kill(os.getpid(), signal.SIGKILL)
                trainer.take(share)
    except CurateError as error:
        (out / "lost.txt").write_text(str(error))


def in_a_fork(port: str, work: Callable[[], None]) -> int:
    """The ranks meet at a port of their own, since torchrun's serves one group of processes."""
    if not (child := os.fork()):
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": port}
        code = 1
        try:
            torch.set_num_threads(1)
            work()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    import torch._dynamo

    jobs, out, port, other = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:5]
    assert in_a_fork(port, lambda: take_all(jobs, out)) == 0
    assert in_a_fork(other, lambda: lose_one(jobs, out)) == (0 if os.environ["RANK"] == "0" else signal.SIGKILL)
    sys.argv[:] = ["distill", *sys.argv[5:]]
    runpy.run_module("distill.cli", run_name="__main__")
