"""Mean and covariance of features in float64, accumulated over batches and ranks.

Each batch is centred on its own mean and merged (Chan et al. 1979): the difference of the sum of squares and the
squared sum loses digits if features are far from zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from distill.parallel import World


class Moments:
    """count, mean (C,) and scatter: sums of products of deviations from the mean, (C, C) or its diagonal (C,)."""

    def __init__(self, width: int, *, covariance: bool) -> None:
        """covariance: all products instead of squares only, at C times the work and memory."""
        self.covariance = covariance
        self.count = torch.zeros((), dtype=torch.float64)
        self.mean = torch.zeros(width, dtype=torch.float64)
        self.scatter = torch.zeros((width, width) if covariance else width, dtype=torch.float64)

    def add(self, features_NC: Tensor) -> None:
        if not len(features_NC):
            return
        x = features_NC.double()
        count, mean = torch.tensor(float(len(x)), dtype=torch.float64), x.mean(0)
        x = x - mean
        scatter = x.T @ x if self.covariance else x.square().sum(0)
        mean, scatter = mean.cpu(), scatter.cpu()
        total = self.count + count
        away = mean - self.mean
        self.scatter += scatter + self._product(away) * (self.count * count / total)
        self.mean += away * (count / total)
        self.count = total

    def merge(self, world: World) -> None:
        """Merge the moments of all ranks; afterwards every rank holds the result."""
        if world.size == 1:
            return
        count = world.sum(self.count.to(world.device, copy=True)).cpu()
        mean = world.sum((self.count * self.mean).to(world.device)).cpu() / count.clamp(min=1.0)
        scatter = self.scatter + self._product(self.mean - mean) * self.count
        self.scatter = world.sum(scatter.to(world.device)).cpu()
        self.count, self.mean = count, mean

    def _product(self, away_C: Tensor) -> Tensor:
        return torch.outer(away_C, away_C) if self.covariance else away_C.square()
