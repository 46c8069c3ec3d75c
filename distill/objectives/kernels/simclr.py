"""SimCLR's loss (NT-Xent: Chen et al. 2020, Eq. 1)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize


def simclr(first_ND: Tensor, second_ND: Tensor, temperature: float) -> Tensor:
    """The mean over both views of all samples: each against the other view of its sample, with all views of the other
    samples as negatives. Without samples 0, with a gradient."""
    count = len(first_ND)
    if not count:
        return (first_ND.sum() + second_ND.sum()) * 0.0
    views = normalize(torch.cat([first_ND, second_ND]), dim=-1)
    itself = torch.eye(2 * count, dtype=torch.bool, device=views.device)
    logits = (views @ views.T / temperature).masked_fill(itself, float("-inf"))
    return cross_entropy(logits, torch.arange(2 * count, device=views.device).roll(count))
