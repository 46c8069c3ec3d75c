"""Losses per image; the caller divides their sums by the number of images in the global batch.

Each image has the same weight, regardless of its size and packing: errors per token, then the mean over an image's
tokens (AMoE, Eqs. 1 to 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, smooth_l1_loss

from curate.encoders.student.network.tokens import means

Kind = Literal["cosine", "mse", "smooth_l1"]
Channels = Literal["mean", "sum"]


def errors(predicted: Tensor, target: Tensor, kind: Kind, channels: Channels = "mean") -> Tensor:
    """Errors of vectors, (…, C) -> (…).

    cosine: 1 - cos: 0 for the same direction, 2 for the opposite direction, 1 for a zero vector. mse and smooth_l1
    (threshold 1): mean or sum over channels.
    """
    if kind == "cosine":
        return 1.0 - cosine_similarity(predicted, target, dim=-1, eps=1e-12)
    if kind == "mse":
        error = (predicted - target).square()
    else:
        error = smooth_l1_loss(predicted, target, reduction="none")
    return error.mean(-1) if channels == "mean" else error.sum(-1)


def frame_means(values: Tensor, frames: Sequence[int]) -> Tensor:
    """Means per sample (B, …) over its frames' values (F, …). frames: number of each sample, F in total."""
    return means(values, frames) if len(values) != len(frames) else values


def hidden_means(values_N: Tensor, hidden_N: Tensor, tokens: Sequence[int]) -> Tensor:
    """Means per image (B,) over its hidden tokens; 0 for an image without any."""
    share = means(hidden_N.to(values_N), tokens)
    return means(values_N * hidden_N, tokens) / torch.where(share == 0, 1.0, share)
