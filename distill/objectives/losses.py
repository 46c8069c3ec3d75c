"""Losses of each image, before any mean: the caller divides sums by the images of the global batch.

An image counts the same however large it is and whatever it is packed with. After AMoE, Eqs. 1 to 4: an error per
token, a mean over the tokens of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, smooth_l1_loss

Kind = Literal["cosine", "mse", "smooth_l1"]
Channels = Literal["mean", "sum"]


def errors(predicted: Tensor, target: Tensor, kind: Kind, channels: Channels = "mean") -> Tensor:
    """Of vectors (…, C) -> (…).

    cosine: 1 - cos, 0 for the same direction, 2 for the opposite one, 1 for a vector of zeros. mse, smooth_l1 (of the
    threshold 1): the mean over channels or their sum.
    """
    if kind == "cosine":
        return 1.0 - cosine_similarity(predicted, target, dim=-1, eps=1e-12)
    if kind == "mse":
        error = (predicted - target).square()
    else:
        error = smooth_l1_loss(predicted, target, reduction="none")
    return error.mean(-1) if channels == "mean" else error.sum(-1)


def image_means(values_N: Tensor, tokens: Sequence[int]) -> Tensor:
    """Values of tokens, images end to end -> means (B,); tokens: patches of each image, N together."""
    counts = torch.tensor(tokens, device=values_N.device)
    image = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts, output_size=len(values_N))
    return values_N.new_zeros(len(counts)).index_add(0, image, values_N) / counts.to(values_N)


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
