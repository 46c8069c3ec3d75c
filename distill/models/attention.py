"""Attention of each image to itself, for images of different lengths laid end to end.

`sdpa_loop` runs anywhere: one call per run of neighbouring images of equal length. It equals one call per image.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def runs(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring images of equal length, as (images, length)."""
    return [(len(list(group)), length) for length, group in groupby(lengths)]


def sdpa_loop(q_NHD: Tensor, k_NHD: Tensor, v_NHD: Tensor, lengths: Sequence[int]) -> Tensor:
    """q, k, v (tokens, heads, head_dim), `lengths` tokens per image -> (tokens, heads, head_dim)."""
    outputs, start = [], 0
    for images, length in runs(lengths):
        stop = start + images * length
        q, k, v = (x[start:stop].view(images, length, *x.shape[1:]).transpose(1, 2) for x in (q_NHD, k_NHD, v_NHD))
        outputs.append(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1))
        start = stop
    return torch.cat(outputs)
