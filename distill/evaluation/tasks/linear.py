"""A linear layer on frozen patch features, trained by gradient descent (AMoE, section 4: 10 epochs, batches of 32
images, learning rate 1e-3). Beside the closed form of `probe`, it makes figures comparable with the literature's.

The paper names no optimiser and no loss. Ours: Adam; the cross-entropy with the share of each class in a patch's
pixels, which is the mean over its labelled pixels; channels of mean 0 and variance 1 (folded into the layer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from distill.evaluation.tasks.probe import Linear

Floats = NDArray[np.floating[Any]]
_CONSTANT = 1e-6
"""Standard deviation of a channel, over the largest, below which the channel is not used."""


@dataclass(frozen=True)
class Schedule:
    epochs: int
    batch: int
    """Images of a step."""
    learning_rate: float


def train(
    images: Sequence[tuple[Floats, Floats]], schedule: Schedule, *, seed: int, device: torch.device | str = "cpu"
) -> Linear:
    """images: of each image, features (P, D) of its patches and the shares of the classes (P, C), which add up to 1.

    The same arguments give the same layer: it starts at zero, and `seed` gives the order of the images.
    """
    mean, scale = _moments([features for features, _ in images])
    inputs = [torch.from_numpy(((features - mean) * scale).astype(np.float32)).to(device) for features, _ in images]
    targets = [torch.from_numpy(shares.astype(np.float32)).to(device) for _, shares in images]
    weight = torch.zeros(inputs[0].shape[1], targets[0].shape[1], device=device, requires_grad=True)
    bias = torch.zeros(targets[0].shape[1], device=device, requires_grad=True)
    optimiser = torch.optim.Adam([weight, bias], lr=schedule.learning_rate)
    random = np.random.default_rng(seed)
    for _ in range(schedule.epochs):
        order = random.permutation(len(images))
        for start in range(0, len(order), schedule.batch):
            chosen = order[start : start + schedule.batch]
            x, y = _rows(inputs, chosen), _rows(targets, chosen)
            with torch.enable_grad():
                loss = cross_entropy(x @ weight + bias, y)
                optimiser.zero_grad()
                torch.autograd.backward(loss)
            optimiser.step()
    found = weight.detach().cpu().numpy().astype(np.float64) * scale[:, None]
    return Linear(found, bias.detach().cpu().numpy().astype(np.float64) - mean @ found, strength=0.0)


def _rows(parts: Sequence[Tensor], chosen: Sequence[int] | NDArray[np.int64]) -> Tensor:
    return torch.cat([parts[int(place)] for place in chosen])


def _moments(parts: Sequence[Floats]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean (D,), and one over the standard deviation (D,), 0 for constant channels."""
    count = sum(len(part) for part in parts)
    mean = sum((part.sum(0, dtype=np.float64) for part in parts), np.zeros(parts[0].shape[1])) / count
    variance = sum((np.square(part - mean).sum(0) for part in parts), np.zeros(len(mean))) / count
    deviation = np.sqrt(variance)
    used = deviation > _CONSTANT * deviation.max(initial=0.0)
    return mean, np.divide(1.0, deviation, out=np.zeros(len(mean)), where=used)
