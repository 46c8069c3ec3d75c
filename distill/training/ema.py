"""A moving average of the weights, which is what is evaluated and exported (Polyak & Juditsky 1992)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from distill.training.parallel import local


class Ema:
    """Holds a second copy of each weight, sharded as the weights are. Buffers (a router's bias) are copied."""

    def __init__(self, model: nn.Module) -> None:
        self._held = {name: value.detach().clone() for name, value in _once(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float) -> None:
        """held = decay * held + (1 - decay) * weight."""
        average = get_ema_multi_avg_fn(decay)
        now = {name: local(value.detach()) for name, value in _once(model).items()}
        held = {name: local(value) for name, value in self._held.items()}
        trained = [name for name, item in model.named_parameters() if item.requires_grad and name in held]
        for dtype in dict.fromkeys(held[name].dtype for name in trained):
            some = [name for name in trained if held[name].dtype == dtype]
            average([held[name] for name in some], [now[name] for name in some], 0)
        for name in held.keys() - set(trained):
            held[name].copy_(now[name])

    def state(self, model: nn.Module) -> dict[str, Tensor]:
        """By the names of the model's state: a weight that modules share has several."""
        first = {id(value): name for name, value in reversed(_named(model).items())}
        return {name: self._held[first[id(value)]] for name, value in _named(model).items()}


def _named(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.state_dict(keep_vars=True))


def _once(model: nn.Module) -> dict[str, Tensor]:
    """Each weight under its first name."""
    seen: set[int] = set()
    return {name: value for name, value in _named(model).items() if not (id(value) in seen or seen.add(id(value)))}
