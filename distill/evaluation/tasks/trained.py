"""Layers on frozen features, trained by gradient descent: what the literature calls a linear or an attention probe.

Each rank holds the features of the images that it read, and the gradients of a step are summed over ranks. The result
does not depend on the number of ranks, up to rounding. Channels have mean 0 and variance 1, as after the batch
normalisation without weights of the papers' probes. The same arguments give the same layer: `seed` gives the order of
the images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, cos, pi
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import skip_init
from torch.nn.utils.rnn import pad_sequence

from curate.core.errors import InputError
from distill.evaluation.tasks.probe import Linear
from distill.parallel import World

Floats = NDArray[np.floating[Any]]
_CONSTANT = 1e-6
"""Standard deviation of a channel, over the largest, below which the channel is not used."""
_HEAD = 64
"""Width of a head of attention."""


@dataclass(frozen=True)
class Schedule:
    epochs: int
    batch: int
    """Images of a step."""
    learning_rate: float
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """sgd: with a momentum of 0.9."""
    weight_decay: float = 0.0
    decays: bool = False
    """Whether the learning rate falls to 0 along a cosine."""

    def of(self, model: nn.Module) -> torch.optim.Optimizer:
        rate, decay = self.learning_rate, self.weight_decay
        if self.optimizer == "sgd":
            return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=decay)
        return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)

    def rate(self, done: float) -> float:
        """Learning rate after a share of the steps."""
        return self.learning_rate * ((1 + cos(pi * done)) / 2 if self.decays else 1.0)


class LinearLayer(nn.Module):
    """Scores of each row of features. Starts at zero."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.layer = skip_init(nn.Linear, width, classes)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, images: Sequence[Tensor]) -> Tensor:
        """Rows (P, D) of each image -> (sum of P, C)."""
        scores: Tensor = self.layer(torch.cat(list(images)))
        return scores


class AttentionLayer(nn.Module):
    """Scores of each image: a learned query attends to its patches, and a linear layer reads what it found (El-Nouby et
    al. 2024, AIM, section 4, which Perception Encoder cites as AIMv2's)."""

    def __init__(self, width: int, classes: int, seed: int) -> None:
        super().__init__()
        heads = width // _HEAD if width % _HEAD == 0 else 1
        generator = torch.Generator().manual_seed(seed)  # the process's is not used
        self.query = nn.Parameter(torch.randn(1, 1, width, generator=generator) * width**-0.5)
        self.attention = skip_init(nn.MultiheadAttention, width, heads, batch_first=True)
        for own in self.attention.parameters():
            nn.init.xavier_uniform_(own, generator=generator) if own.ndim > 1 else nn.init.zeros_(own)
        self.linear = LinearLayer(width, classes)

    def forward(self, images: Sequence[Tensor]) -> Tensor:
        """Patches (P, D) of each of B images -> (B, C)."""
        patches_BPD = pad_sequence(list(images), batch_first=True)
        lengths = torch.tensor([len(own) for own in images], device=patches_BPD.device)
        padding = torch.arange(patches_BPD.shape[1], device=lengths.device) >= lengths[:, None]
        query = self.query.expand(len(lengths), -1, -1)
        found, _ = self.attention(query, patches_BPD, patches_BPD, key_padding_mask=padding, need_weights=False)
        scores: Tensor = self.linear([found[:, 0]])
        return scores


@dataclass(frozen=True)
class Trained:
    """A trained layer, with the standardisation of its features."""

    layer: nn.Module
    mean: Tensor
    """(D,) float32, on the layer's device."""
    scale: Tensor
    """(D,): one over the standard deviation, 0 for unused channels."""

    def __call__(self, images: Sequence[Floats]) -> NDArray[np.float64]:
        """Features (P, D) of each image -> scores, as the layer gives them."""
        with torch.no_grad():
            scores = self.layer([_standardised(own, self.mean, self.scale) for own in images])
        return _doubles(scores)

    def folded(self) -> Linear:
        """A linear layer as one on the features themselves."""
        assert isinstance(self.layer, LinearLayer)
        weight, bias = (_doubles(own) for own in self.layer.layer.parameters())
        mean, scale = _doubles(self.mean), _doubles(self.scale)
        return Linear(weight.T * scale[:, None], bias - weight @ (mean * scale), strength=0.0)


def train(
    layer: nn.Module, own: Mapping[int, tuple[Floats, Floats]], schedule: Schedule, *, world: World, seed: int
) -> Trained:
    """A collective of all ranks, each with an equal layer. Minimises the cross-entropy, a mean over rows of targets.
    Raises InputError if features or weights are not finite.

    own: of each of this rank's images, by row, its features (P, D) and targets (T, C), shares of the classes that add
    up to 1. The layer turns the features of some images into scores for all of their rows of targets.
    """
    layer.to(world.device)
    rows = sorted(row for part in world.gather(sorted(own)) for row in part)
    width = next(part for part in world.gather(next((x.shape[1] for x, _ in own.values()), None)) if part is not None)
    mean, scale = _moments([features for features, _ in own.values()], width, world)
    if not mean.isfinite().all():
        raise InputError(
            f"evaluate: features are not finite in half precision (at most {np.finfo(np.float16).max:,.0f}); leave "
            f"attention out of evaluate.probes, and set evaluate.segmentation_epochs=0"
        )
    optimiser, random = schedule.of(layer), np.random.default_rng(seed)
    steps = schedule.epochs * ceil(len(rows) / schedule.batch)
    step = 0
    for _ in range(schedule.epochs):
        order = random.permutation(rows).tolist()
        for start in range(0, len(order), schedule.batch):
            examples = [own[row] for row in order[start : start + schedule.batch] if row in own]
            for group in optimiser.param_groups:
                group["lr"] = schedule.rate(step / steps)
            _gradients(layer, examples, mean, scale, world)
            optimiser.step()
            step += 1
    if not all(weight.isfinite().all() for weight in layer.parameters()):
        raise InputError(
            f"evaluate: a layer has weights that are not finite after {step} steps at a learning rate of "
            f"{schedule.learning_rate:g}; lower evaluate.probe_learning_rate or evaluate.segmentation_learning_rate"
        )
    return Trained(layer.eval(), mean, scale)


def _gradients(
    layer: nn.Module,
    examples: Sequence[tuple[Floats, Floats]],
    mean: Tensor,
    scale: Tensor,
    world: World,
) -> None:
    """Set the gradients of the mean loss over the examples of all ranks."""
    layer.zero_grad()
    count, parameters = 0, list(layer.parameters())
    if examples:
        targets = torch.from_numpy(np.concatenate([own for _, own in examples]).astype(np.float32)).to(world.device)
        count = len(targets)
        with torch.enable_grad():
            scores = layer([_standardised(features, mean, scale) for features, _ in examples])
            torch.autograd.backward(cross_entropy(scores, targets, reduction="sum"))
    parts = [torch.zeros_like(own) if own.grad is None else own.grad for own in parameters]
    total = world.sum(torch.cat([parts[0].new_tensor([count]), *(part.flatten() for part in parts)]))
    for own, part in zip(parameters, (total[1:] / total[0]).split([own.numel() for own in parameters]), strict=True):
        own.grad = part.view_as(own)


def _standardised(features: Floats, mean: Tensor, scale: Tensor) -> Tensor:
    return (torch.from_numpy(features).to(mean.device).float() - mean) * scale


def _doubles(values: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = values.detach().cpu().double().numpy()
    return array


def _moments(parts: Sequence[Floats], width: int, world: World) -> tuple[Tensor, Tensor]:
    """Mean (D,), and one over the standard deviation (D,), 0 for constant channels; over the parts of all ranks."""

    def over_all(sums: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        return np.array(world.numbers(sum(sums, np.zeros(width)))) / count

    (count,) = world.numbers([sum(len(part) for part in parts)])
    mean = over_all([part.sum(0, dtype=np.float64) for part in parts])
    deviation = np.sqrt(over_all([np.square(part - mean).sum(0) for part in parts]))
    used = deviation > _CONSTANT * deviation.max(initial=0.0)
    scale = np.divide(1.0, deviation, out=np.zeros(width), where=used)
    first, second = (torch.from_numpy(one).float().to(world.device) for one in (mean, scale))
    return first, second
