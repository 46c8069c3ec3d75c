"""Bilinear resampling of patch features from one grid to another."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def resample_patches(features_HWP: Tensor, rows: int, columns: int) -> Tensor:
    """Features (H, W, P) -> (rows * columns, P) on another grid, bilinear and antialiased.

    The same as `interpolate(mode="bilinear", antialias=True)`, which is wrong in torch 2.15 for grids one column wide.
    """
    height, width, _ = features_HWP.shape
    if (height, width) == (rows, columns):
        return features_HWP.flatten(0, 1)
    down, across = _triangle(height, rows).to(features_HWP), _triangle(width, columns).to(features_HWP)
    return torch.einsum("rh,cw,hwp->rcp", down, across, features_HWP).flatten(0, 1)


@lru_cache(maxsize=1024)
def _triangle(size: int, new_size: int) -> Tensor:
    """Weights (new_size, size) of a triangle filter as wide as a step of the coarser grid; rows sum to 1."""
    step = size / new_size
    centre = (torch.arange(new_size, dtype=torch.float64) + 0.5) * step
    distance = (torch.arange(size, dtype=torch.float64) + 0.5 - centre[:, None]).abs() / max(step, 1.0)
    weights = (1.0 - distance).clamp(min=0.0)
    return weights / weights.sum(1, keepdim=True)
