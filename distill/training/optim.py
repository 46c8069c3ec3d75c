"""Optimisers of torch and timm by name, the learning rate of each update, and the moving average of the weights."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from curate.core.errors import RecipeError, did_you_mean
from distill.parallel import local
from distill.recipe import TrainRecipe


def learning_rate(train: TrainRecipe, step: int, steps: int) -> float:
    """Learning rate of the step-th update (from 0) of a schedule of `steps`: linear warm-up, then `schedule`."""
    if step < train.warmup_steps:
        return train.learning_rate * (step + 1) / train.warmup_steps
    done = (step - train.warmup_steps) / max(1, steps - 1 - train.warmup_steps)
    decay = {"constant": 0.0, "linear": done, "cosine": 0.5 - 0.5 * math.cos(math.pi * done)}[train.schedule]
    return train.learning_rate + (train.final_learning_rate - train.learning_rate) * decay


def rate_factors(model: nn.Module, train: TrainRecipe) -> dict[str, float]:
    """Factor of the learning rate of each weight, by name: that of its part, times that of its layer.

    Raises RecipeError for a part without weights.
    """
    names = [name for name, _ in model.named_parameters()]
    for part in train.rates:
        if not any(_belongs(name, part) for name in names):
            known = dict.fromkeys(".".join(name.split(".")[:depth]) for depth in (1, 2) for name in names)
            raise RecipeError(
                f"train.rates: no weight of the student belongs to {part!r}; "
                + did_you_mean(part, list(known), f"its parts are {', '.join(known)}")
            )
    depths: Counter[str] = Counter()
    for tower, number in filter(None, map(_block, names)):
        depths[tower] = max(depths[tower], number + 1)
    return {name: _rate_of_part(name, train) * _rate_of_layer(name, train.layer_decay, depths) for name in names}


def _belongs(name: str, part: str) -> bool:
    return f"{name}.".startswith(f"{part}.")


def _rate_of_part(name: str, train: TrainRecipe) -> float:
    return train.rates.get(max((part for part in train.rates if _belongs(name, part)), key=len, default=""), 1.0)


def _rate_of_layer(name: str, decay: float, depths: Mapping[str, int]) -> float:
    """decay^(L + 1 - l) for block l of L, from 1; what comes before the blocks counts as l = 0."""
    if (block := _block(name)) is not None:
        return decay ** (depths[block[0]] - block[1])
    tower, *rest = name.split(".")
    return decay ** (depths[tower] + 1) if depths.get(tower) and rest[0] in _BELOW else 1.0


_BELOW = ("embed", "prefix", "tokens", "positions", "pre_norm")
"""Weights that tokens pass before the blocks."""


def _block(name: str) -> tuple[str, int] | None:
    """(tower, block from 0) of a weight in a block."""
    parts = name.split(".")
    return (parts[0], int(parts[2])) if parts[1:2] == ["blocks"] else None


def parameter_groups(
    model: nn.Module, weight_decay: float, factors: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Weight decay for matrices; none for vectors (norms, biases), prefix tokens, queries, positions and scalars.
    Scalars are a separate group, because they are never sharded. factors: `rate_factors`, a group for each."""
    groups: dict[tuple[float, int], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        matrix = parameter.ndim > 1 and not name.endswith(("prefix", "positions", "latent"))
        kind = 2 if parameter.ndim == 0 else 0 if matrix else 1
        groups[-(factors or {}).get(name, 1.0), kind].append(parameter)
    return [
        {"params": found, "weight_decay": 0.0 if kind else weight_decay, "decays": kind == 0, "factor": -factor}
        for (factor, kind), found in sorted(groups.items(), key=lambda item: item[0])
    ]


def build_optimizer(model: nn.Module, train: TrainRecipe) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019), Lion (Chen et al. 2023) or LAMB (You et al. 2020).

    AdamW's update is one kernel for all weights, on CPUs and GPUs. LAMB's own clipping is off; `train.clip_norm`
    applies to all three.
    """
    groups = parameter_groups(model, train.weight_decay, rate_factors(model, train))
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


def freeze(model: nn.Module, train: TrainRecipe) -> None:
    """Freeze the weights whose rate is 0. Raises RecipeError if none is left."""
    parameters = dict(model.named_parameters())
    for name, factor in rate_factors(model, train).items():
        if factor == 0:
            parameters[name].requires_grad_(False)
    if not any(item.requires_grad for item in parameters.values()):
        raise RecipeError("train.rates: every weight of the student is frozen; give a part a factor above 0")


def states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's tensors by the name of the weight, with LAMB's number of updates, which it has by group."""
    found = {}
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        of_group = {key: value for key, value in group.items() if isinstance(value, Tensor)}
        for parameter in group["params"]:
            for key, value in {**optimizer.state.get(parameter, {}), **of_group}.items():
                found[f"{names[parameter]}.{key}"] = value
    return found


def split_by_updates(optimizer: torch.optim.Optimizer, updates: Tensor | None) -> None:
    """Divide LAMB's groups after a checkpoint was loaded, as it counts updates by group and a stage may have new
    weights. updates: their number for all weights; None: in their states, which it is removed from."""
    groups, optimizer.param_groups = optimizer.param_groups, []
    for group in groups:
        parts: dict[float, list[nn.Parameter]] = defaultdict(list)
        for parameter in group["params"]:
            own = optimizer.state[parameter].pop("step", updates) if optimizer.state.get(parameter) else None
            parts[0.0 if own is None else float(own)].append(parameter)
        for count, found in parts.items():
            step = {"step": torch.tensor(count)} if count else {}
            optimizer.add_param_group({**group, "params": found, **step})


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
