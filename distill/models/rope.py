"""Golden RoPE: rotary positions in the plane, with a direction of its own for every head and frequency.

Source: AMoE (../shared/training.md, "AMoE in detail"); rotary embeddings: Su et al. 2021, Eq. 34.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOWEST, HIGHEST = 1.0, 20.0
_GOLDEN_ANGLE = math.pi * (math.sqrt(5.0) - 1.0) / 2.0


def directions(heads: int, head_dim: int) -> Tensor:
    """Wave vectors (heads, head_dim / 2, 2) in float64: frequencies log-spaced 1 -> 20, turned by the golden angle."""
    count = head_dim // 2
    magnitude = torch.logspace(math.log10(LOWEST), math.log10(HIGHEST), count, dtype=torch.float64)
    angle = torch.arange(heads * count, dtype=torch.float64).view(heads, count) * _GOLDEN_ANGLE
    return magnitude[None, :, None] * torch.stack([angle.cos(), angle.sin()], dim=-1)


def coordinates(rows: int, columns: int) -> Tensor:
    """Patch centres (rows * columns, 2) as (x, y): x in ±sqrt(W/H), y in ±sqrt(H/W), so the area is always 4."""
    reach_x, reach_y = math.sqrt(columns / rows), math.sqrt(rows / columns)
    x = ((torch.arange(columns, dtype=torch.float64) + 0.5) / columns * 2 - 1) * reach_x
    y = ((torch.arange(rows, dtype=torch.float64) + 0.5) / rows * 2 - 1) * reach_y
    return torch.stack([x.repeat(rows), y.repeat_interleave(columns)], dim=-1)


def rotations(waves: Tensor, rows: int, columns: int, prefix: int) -> Tensor:
    """cos and sin (2, prefix + rows * columns, heads, head_dim / 2); the prefix (CLS, registers) is not rotated."""
    angle = torch.einsum("nc,hfc->nhf", coordinates(rows, columns), waves)
    still = torch.zeros(prefix, *angle.shape[1:], dtype=angle.dtype)
    angle = torch.cat([still, angle])
    return torch.stack([angle.cos(), angle.sin()])


def rotate(x_NHD: Tensor, rotation: Tensor) -> Tensor:
    """Turn each pair (x[d], x[d + D/2]) by its angle; rotation as from `rotations`, concatenated over images."""
    cos, sin = rotation[0], rotation[1]
    a, b = x_NHD.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
