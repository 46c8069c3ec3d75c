"""Losses of each image, before any mean: the caller divides sums by the images of the global batch.

An image counts the same however large it is and whatever it is packed with (../shared/training.md, "AMoE in detail").
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, interpolate


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
    """A teacher's patch features on its own grid -> (rows * columns, P) on the student's, bilinear, antialiased."""
    if features_HWP.shape[:2] == (rows, columns):
        return features_HWP.flatten(0, 1)
    stacked = features_HWP.permute(2, 0, 1)[None].float()
    resized = interpolate(stacked, (rows, columns), mode="bilinear", align_corners=False, antialias=True)
    return resized[0].permute(1, 2, 0).flatten(0, 1)
