"""Takes steps as one of torchrun's processes, or alone: `python -m tests.distill.ranks RECIPE STEPS OUT`.

Writes OUT/RANK.pt: per step the sums over the global batch and the gradients after they were added up, and in the end
the teacher's standards and the student's weights.
"""

from __future__ import annotations

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
        trainer = Trainer(Workbench.of(recipe, open_dataset(recipe.data.dataset), world), "fingerprint")
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


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        take_steps(yaml.safe_load(file), int(sys.argv[2]), sys.argv[3])
