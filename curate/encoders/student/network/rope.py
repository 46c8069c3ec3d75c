"""Golden RoPE: rotary positions in the plane, with a separate direction for every head and frequency.

Source: AMoE (inference code of its authors); rotary embeddings: Su et al. 2021, Eq. 34.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

Grid = tuple[int, int]

LOWEST, HIGHEST = 1.0, 20.0
_GOLDEN_ANGLE = math.pi * (math.sqrt(5.0) - 1.0) / 2.0
_KEPT_GRIDS = 1024


def directions(heads: int, head_dim: int) -> Tensor:
    """Wave vectors (heads, head_dim / 2, 2) in float64: frequencies log-spaced 1 -> 20, golden-angle directions."""
    count = head_dim // 2
    magnitude = torch.logspace(math.log10(LOWEST), math.log10(HIGHEST), count, dtype=torch.float64, device="cpu")
    angle = torch.arange(heads * count, dtype=torch.float64, device="cpu").view(heads, count) * _GOLDEN_ANGLE
    return magnitude[None, :, None] * torch.stack([angle.cos(), angle.sin()], dim=-1)


@lru_cache(maxsize=_KEPT_GRIDS)
def coordinates(rows: int, columns: int) -> Tensor:
    """Patch centres (rows * columns, 2) as (x, y): x in ±sqrt(W/H), y in ±sqrt(H/W), so the area is always 4.

    Cached by (rows, columns): a 2 x 4 grid differs from a 4 x 2 grid. The caller must not modify the result.
    """
    reach_x, reach_y = math.sqrt(columns / rows), math.sqrt(rows / columns)
    x = ((torch.arange(columns, dtype=torch.float64) + 0.5) / columns * 2 - 1) * reach_x
    y = ((torch.arange(rows, dtype=torch.float64) + 0.5) / rows * 2 - 1) * reach_y
    return torch.stack([x.repeat(rows), y.repeat_interleave(columns)], dim=-1)


def positions(grids: Sequence[Grid], prefix: int) -> Tensor:
    """Coordinates (tokens, 2) of packed images; the prefix of each image (CLS, registers) is at the origin."""
    origin = torch.zeros(prefix, 2, dtype=torch.float64)
    pieces = [piece for grid in grids for piece in (origin, coordinates(*grid))]
    return torch.cat(pieces) if pieces else origin[:0]


def rotations(waves: Tensor, positions_N2: Tensor) -> Tensor:
    """cos and sin (tokens, heads, head_dim / 2, 2), in the waves' dtype.

    Products and a sum instead of a matrix product, so that a token's angle does not depend on its neighbours.
    """
    x, y = positions_N2[:, :1, None], positions_N2[:, 1:, None]
    angle = x * waves[..., 0] + y * waves[..., 1]
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def rotate(x_NHD: Tensor, rotation: Tensor) -> Tensor:
    """Rotate each pair (x[2i], x[2i + 1]) by its angle; rotation: the result of `rotations`.

    A complex product reads and writes once, while the real formula takes eight passes; compilers fuse only the latter.
    """
    pairs = x_NHD.to(rotation.dtype).unflatten(-1, (-1, 2))
    if not torch.compiler.is_compiling():
        rotated = torch.view_as_complex(pairs.contiguous()) * torch.view_as_complex(rotation)
        return torch.view_as_real(rotated).flatten(-2)
    return rotate_pairs(pairs, rotation).flatten(-2)


def rotate_pairs(pairs: Tensor, rotation: Tensor) -> Tensor:
    """`rotate` in real numbers, for pairs (tokens, heads, head_dim / 2, 2)."""
    (a, b), (cos, sin) = pairs.unbind(-1), rotation.unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1)
