"""Optimisers of torch and timm by name, the learning rate of each update, and the moving average of the weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from distill.parallel import local
from distill.recipe import Recipe, TrainRecipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """Learning rate of the step-th update (from 0) of a stage: linear warm-up, then `schedule`."""
    train = recipe.train
    if step < train.warmup_steps:
        return train.learning_rate * (step + 1) / train.warmup_steps
    done = (step - train.warmup_steps) / max(1, train.steps - 1 - train.warmup_steps)
    decay = {"constant": 0.0, "linear": done, "cosine": 0.5 - 0.5 * math.cos(math.pi * done)}[train.schedule]
    return train.learning_rate + (train.final_learning_rate - train.learning_rate) * decay


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices; none for vectors (norms, biases), prefix tokens, queries, positions and scalars."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    scalars: list[nn.Parameter] = []  # a separate group, because they are never sharded
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim == 0:
            scalars.append(parameter)
        else:
            (matrices if parameter.ndim > 1 and not name.endswith(("prefix", "positions", "latent")) else rest).append(
                parameter
            )
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": weight_decay, "decays": True}]
    return groups + [{"params": group, "weight_decay": 0.0, "decays": False} for group in (rest, scalars) if group]


def build_optimizer(model: nn.Module, train: TrainRecipe) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019), Lion (Chen et al. 2023) or LAMB (You et al. 2020).

    AdamW's update is one kernel for all weights, on CPUs and GPUs. LAMB's own clipping is off; `train.clip_norm`
    applies to all three.
    """
    groups = parameter_groups(model, train.weight_decay)
    if train.optimizer == "lion":
        from timm.optim.lion import Lion  # importing timm takes seconds

        return Lion(groups, lr=train.learning_rate, betas=train.betas)
    if train.optimizer == "lamb":
        from timm.optim.lamb import Lamb

        return Lamb(groups, lr=train.learning_rate, betas=train.betas, eps=train.epsilon, max_grad_norm=None)
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=train.betas, eps=train.epsilon, fused=True)


def configure_optimizer(optimizer: torch.optim.Optimizer, train: TrainRecipe) -> None:
    """Apply the settings that a stage may change; the optimiser's state stays."""
    for group in optimizer.param_groups:
        group["betas"] = train.betas
        if group["decays"]:
            group["weight_decay"] = train.weight_decay
        if "eps" in group:
            group["eps"] = train.epsilon


class Ema:
    """A moving average of the weights, which is evaluated and exported (Polyak & Juditsky 1992).

    Holds a second copy of each weight, sharded as the weights are. Buffers (a router's bias) are copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self._averages = {name: value.detach().clone() for name, value in _unique(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float) -> None:
        """average = decay * average + (1 - decay) * weight."""
        average = get_ema_multi_avg_fn(decay)
        weights = {name: local(value.detach()) for name, value in _unique(model).items()}
        averages = {name: local(value) for name, value in self._averages.items()}
        trained = [name for name, item in model.named_parameters() if item.requires_grad and name in averages]
        for dtype in dict.fromkeys(averages[name].dtype for name in trained):
            names = [name for name in trained if averages[name].dtype == dtype]
            average([averages[name] for name in names], [weights[name] for name in names], 0)
        for name in averages.keys() - set(trained):
            averages[name].copy_(weights[name])

    def state(self, model: nn.Module) -> dict[str, Tensor]:
        """Averages by the names of the model's state; a weight that modules share has several names."""
        first = {id(value): name for name, value in reversed(_state(model).items())}
        return {name: self._averages[first[id(value)]] for name, value in _state(model).items()}


def _state(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.state_dict(keep_vars=True))


def _unique(model: nn.Module) -> dict[str, Tensor]:
    """Each weight under its first name."""
    state, first = _state(model), dict[int, str]()
    for name, value in state.items():
        first.setdefault(id(value), name)
    return {name: value for name, value in state.items() if first[id(value)] == name}
