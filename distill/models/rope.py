"""Golden RoPE: rotary positions in the plane, with a direction of its own for every head and frequency.

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
    """Wave vectors (heads, head_dim / 2, 2) in float64: frequencies log-spaced 1 -> 20, turned by the golden angle."""
    count = head_dim // 2
    magnitude = torch.logspace(math.log10(LOWEST), math.log10(HIGHEST), count, dtype=torch.float64, device="cpu")
    angle = torch.arange(heads * count, dtype=torch.float64, device="cpu").view(heads, count) * _GOLDEN_ANGLE
    return magnitude[None, :, None] * torch.stack([angle.cos(), angle.sin()], dim=-1)


@lru_cache(maxsize=_KEPT_GRIDS)
def coordinates(rows: int, columns: int) -> Tensor:
    """Patch centres (rows * columns, 2) as (x, y): x in ±sqrt(W/H), y in ±sqrt(H/W), so the area is always 4.

    Kept by (rows, columns), never by the number of patches: a 2 x 4 grid is not a 4 x 2 grid. Not to be written to.
    """
    reach_x, reach_y = math.sqrt(columns / rows), math.sqrt(rows / columns)
    x = ((torch.arange(columns, dtype=torch.float64) + 0.5) / columns * 2 - 1) * reach_x
    y = ((torch.arange(rows, dtype=torch.float64) + 0.5) / rows * 2 - 1) * reach_y
    return torch.stack([x.repeat(rows), y.repeat_interleave(columns)], dim=-1)


def places(grids: Sequence[Grid], prefix: int) -> Tensor:
    """Coordinates (tokens, 2) of images end to end; each one's prefix (CLS, registers) stands still at the origin."""
    origin = torch.zeros(prefix, 2, dtype=torch.float64)
    pieces = [piece for grid in grids for piece in (origin, coordinates(*grid))]
    return torch.cat(pieces) if pieces else origin[:0]


def rotations(waves: Tensor, places_N2: Tensor) -> Tensor:
    """cos and sin (tokens, heads, head_dim / 2, 2), in the waves' dtype.

    Products and a sum rather than a matrix product, so that a token's angle does not depend on its neighbours.
    """
    x, y = places_N2[:, :1, None], places_N2[:, 1:, None]
    angle = x * waves[..., 0] + y * waves[..., 1]
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def rotate(x_NHD: Tensor, rotation: Tensor) -> Tensor:
    """Turn each pair (x[2i], x[2i + 1]) by its angle; rotation as from `rotations`.

    Complex products read and write once, where the real formula needs eight passes; compilers fuse only the latter.
    """
    pairs = x_NHD.to(rotation.dtype).unflatten(-1, (-1, 2))
    if not torch.compiler.is_compiling():
        turned = torch.view_as_complex(pairs.contiguous()) * torch.view_as_complex(rotation)
        return torch.view_as_real(turned).flatten(-2)
    return rotate_pairs(pairs, rotation).flatten(-2)


def rotate_pairs(pairs: Tensor, rotation: Tensor) -> Tensor:
    """The same in real numbers: pairs (tokens, heads, head_dim / 2, 2)."""
    (a, b), (cos, sin) = pairs.unbind(-1), rotation.unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1)
