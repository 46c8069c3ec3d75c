"""The optimiser: AdamW as one kernel for all weights, against torch's loop over weights and its lists of weights.

AMoE's student at a quarter of its width (18 layers, 28 experts), one thread; `foreach` is the list.

    python -m bench.distill.optimizer [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import nn

from bench.kit.measure import line, machine
from curate.encoders.student.config import HeadConfig
from curate.encoders.student.network.student import Student, build_student
from distill.recipe import load_recipe
from distill.training.optim import build_optimizer, parameter_groups

_SETS = ["student.width=192", "student.heads=4", "student.head_dim=48", "student.moe.hidden=96"]
_STEPS = 3


def student_of(seed: int) -> Student:
    recipe = load_recipe("amoe", _SETS)
    heads = [HeadConfig(summary=width, patches=width, hidden=256) for width in (1152, 1024)]
    student = build_student(recipe.student, heads, seed)
    for item in student.parameters():
        item.grad = torch.randn(item.shape, generator=torch.Generator().manual_seed(seed))
    return student


def optimizers(model: nn.Module) -> dict[str, torch.optim.Optimizer]:
    train = load_recipe("amoe").train
    groups = parameter_groups(model, train.weight_decay)
    settings = {"lr": train.learning_rate, "betas": train.betas, "eps": train.epsilon}
    return {
        "fused": build_optimizer(model, train),
        "foreach": torch.optim.AdamW([dict(group) for group in groups], foreach=True, **settings),
        "loop": torch.optim.AdamW([dict(group) for group in groups], foreach=False, **settings),
    }


def seconds(optimizer: torch.optim.Optimizer) -> float:
    """Mean time of several steps."""
    began = time.perf_counter()
    for _ in range(_STEPS):
        optimizer.step()
    return (time.perf_counter() - began) / _STEPS


def main(rounds: int = 5) -> None:
    torch.set_num_threads(1)
    model = student_of(0)
    found = optimizers(model)
    times: dict[str, list[float]] = {name: [] for name in found}
    for optimizer in found.values():
        seconds(optimizer)  # allocates the states
    for _ in range(rounds):
        for name, optimizer in found.items():
            times[name].append(seconds(optimizer))
    count = sum(item.numel() for item in model.parameters() if item.requires_grad)
    for name, own in times.items():
        ratio = statistics.median(a / b for a, b in zip(own, times["fused"], strict=True))
        middle = statistics.median(own)
        line(f"AdamW, {name}", f"{1e3 * middle:.1f} ms", f"{1e9 * middle / count:.2f} ns a weight, {ratio:.1f} x fused")
    line("weights", f"{count / 1e6:.1f}M", f"{rounds} rounds of {_STEPS} steps")


if __name__ == "__main__":
    print(machine())
    main(*map(int, sys.argv[1:]))
