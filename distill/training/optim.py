"""Optimisers of torch and timm, by name, and the learning rate of each update."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from distill.recipe import Recipe, TrainRecipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """Of the step-th update (from 0) of a stage: linear warm-up to `learning_rate`, then as `schedule` says."""
    train = recipe.train
    if step < train.warmup_steps:
        return train.learning_rate * (step + 1) / train.warmup_steps
    done = (step - train.warmup_steps) / max(1, train.steps - 1 - train.warmup_steps)
    way = {"constant": 0.0, "linear": done, "cosine": 0.5 - 0.5 * math.cos(math.pi * done)}[train.schedule]
    return train.learning_rate + (train.final_learning_rate - train.learning_rate) * way


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; vectors (norms, biases), prefix tokens, positions and numbers (a temperature) do not."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    numbers: list[nn.Parameter] = []  # on their own, since they are never sharded
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim == 0:
            numbers.append(parameter)
        else:
            (matrices if parameter.ndim > 1 and not name.endswith(("prefix", "positions")) else rest).append(parameter)
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": weight_decay, "decays": True}]
    return groups + [{"params": group, "weight_decay": 0.0, "decays": False} for group in (rest, numbers) if group]


def build_optimizer(model: nn.Module, train: TrainRecipe) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019), Lion (Chen et al. 2023) or LAMB (You et al. 2020).

    LAMB's own clipping is off: `train.clip_norm` says the same for all three.
    """
    groups = parameter_groups(model, train.weight_decay)
    if train.optimizer == "lion":
        from timm.optim.lion import Lion  # with timm come seconds of imports

        return Lion(groups, lr=train.learning_rate, betas=train.betas)
    if train.optimizer == "lamb":
        from timm.optim.lamb import Lamb

        return Lamb(groups, lr=train.learning_rate, betas=train.betas, eps=train.epsilon, max_grad_norm=None)
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=train.betas, eps=train.epsilon)


def set_up(optimizer: torch.optim.Optimizer, train: TrainRecipe) -> None:
    """What a stage may change of the optimiser that goes on."""
    for group in optimizer.param_groups:
        group["betas"] = train.betas
        if group["decays"]:
            group["weight_decay"] = train.weight_decay
        if "eps" in group:
            group["eps"] = train.epsilon
