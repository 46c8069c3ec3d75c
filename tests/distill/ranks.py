"""What ranks do, as torchrun starts them: `python -m tests.distill.ranks RECIPE STEPS OUT PORT ARGUMENT ...`.

Takes steps in a fork of this process, so that both jobs share one import of torch: writes OUT/RANK.pt, per step the
sums over the global batch and the gradients after they were added up, and in the end the teacher's standards and the
student's weights. Then it is `python -m distill.cli ARGUMENT ...`.
"""

from __future__ import annotations

import os
import runpy
import sys
from itertools import islice

import torch
import yaml

from distill.data.dataset import open_dataset
from distill.parallel import join_world
from distill.recipe import parse_recipe
from distill.train import Trainer
from distill.workbench import Workbench


def take_steps(values: dict, steps: int, out: str) -> None:
    torch.set_num_threads(1)
    recipe = parse_recipe(values, "test")
    with join_world("cpu") as world:
        trainer = Trainer(Workbench.of(recipe, open_dataset(recipe.data.sources[0].dataset), world), "fingerprint")
        trainer.standards = trainer.bench.standards()
        taken = []
        for share in islice(trainer.loader, steps):
            sums, _ = trainer.take(share)
            grads = {name: item.grad.clone() for name, item in trainer.student.named_parameters()}
            taken.append({"sums": sums, "grads": grads, "own": len(share.pictures)})
        standards = [standard.state() for standard in trainer.standards]
        torch.save(
            {"steps": taken, "standards": standards, "student": trainer.student.state_dict()}, f"{out}/{world.rank}.pt"
        )


def in_a_fork(recipe: str, steps: int, out: str, port: str) -> None:
    """The ranks meet at a port of their own, since torchrun's serves one group of processes."""
    if not (child := os.fork()):
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": port}
        code = 1
        try:
            with open(recipe) as file:
                take_steps(yaml.safe_load(file), steps, out)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    import torch._dynamo

    in_a_fork(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5])
    sys.argv[:] = ["distill", *sys.argv[5:]]
    runpy.run_module("distill.cli", run_name="__main__")
