"""Losses of each image, before any mean: the caller divides sums by the images of the global batch.

An image counts the same however large it is and whatever it is packed with (../shared/training.md, "AMoE in detail").
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity


def summary_loss(predicted_BD: Tensor, target_BD: Tensor) -> Tensor:
    """1 - cosine (B,): 0 for the same direction, 2 for the opposite one."""
    return 1.0 - cosine_similarity(predicted_BD, target_BD, dim=-1, eps=1e-12)


def patch_loss(predicted_NP: Tensor, target_NP: Tensor, tokens: Sequence[int], error: str = "mean") -> Tensor:
    """Squared error (B,), summed or averaged over channels, averaged over the tokens of each image.

    tokens: patches per image, in order; they add up to N.
    """
    squared = (predicted_NP - target_NP).square()
    per_token = squared.mean(-1) if error == "mean" else squared.sum(-1)
    counts = torch.as_tensor(tokens, device=per_token.device)
    image = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    total = per_token.new_zeros(len(counts)).index_add(0, image, per_token)
    return total / counts.to(total)


def resample_patches(features_HWP: Tensor, rows: int, columns: int) -> Tensor:
    """A teacher's patch features on its own grid -> (rows * columns, P) on the student's, bilinear, antialiased.

    As `interpolate(mode="bilinear", antialias=True)`, which torch 2.15 computes wrongly for grids one column wide.
    """
    height, width, _ = features_HWP.shape
    if (height, width) == (rows, columns):
        return features_HWP.flatten(0, 1)
    down, across = _triangle(height, rows).to(features_HWP), _triangle(width, columns).to(features_HWP)
    return torch.einsum("rh,cw,hwp->rcp", down, across, features_HWP).flatten(0, 1)


@lru_cache(maxsize=1024)
def _triangle(size: int, wanted: int) -> Tensor:
    """Weights (wanted, size) of a triangle filter as wide as a step of the coarser grid; rows add up to 1."""
    step = size / wanted
    centre = (torch.arange(wanted, dtype=torch.float64) + 0.5) * step
    away = (torch.arange(size, dtype=torch.float64) + 0.5 - centre[:, None]).abs() / max(step, 1.0)
    weights = (1.0 - away).clamp(min=0.0)
    return weights / weights.sum(1, keepdim=True)
