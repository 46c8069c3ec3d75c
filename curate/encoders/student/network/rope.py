"""Positions of patches: rotations of queries and keys (Su et al. 2021, Eq. 34), and learned vectors.

golden    a separate direction for every head and frequency, in coordinates of the image's shape. Source: AMoE
          (inference code of its authors)
axial     by column in the first half of a head, by row in the second, in whole patches. Source: PE (Bolya et al. 2025)
absolute  a learned vector for each place of a square grid, resized bilinearly to the image's grid

All are computed for each token by itself, so a subset of an image's tokens has the same positions as in the image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

Grid = tuple[int, int]

LOWEST, HIGHEST = 1.0, 20.0
_AXIAL_BASE = 1e4
_GOLDEN_ANGLE = math.pi * (math.sqrt(5.0) - 1.0) / 2.0
_KEPT_GRIDS = 1024


def directions(heads: int, head_dim: int) -> Tensor:
    """Wave vectors (heads, head_dim / 2, 2) in float64: frequencies log-spaced 1 -> 20, golden-angle directions."""
    count = head_dim // 2
    magnitude = torch.logspace(math.log10(LOWEST), math.log10(HIGHEST), count, dtype=torch.float64, device="cpu")
    angle = torch.arange(heads * count, dtype=torch.float64, device="cpu").view(heads, count) * _GOLDEN_ANGLE
    return magnitude[None, :, None] * torch.stack([angle.cos(), angle.sin()], dim=-1)


def axes(head_dim: int) -> Tensor:
    """Wave vectors (1, head_dim / 2, 2) in float64, for all heads: frequencies 10000^(-4i / head_dim) along x, then
    along y. head_dim: a multiple of 4."""
    count = head_dim // 4
    bands = _AXIAL_BASE ** -(torch.arange(count, dtype=torch.float64, device="cpu") / count)
    zeros = torch.zeros_like(bands)
    return torch.cat([torch.stack([bands, zeros], dim=-1), torch.stack([zeros, bands], dim=-1)])[None]


@lru_cache(maxsize=_KEPT_GRIDS)
def coordinates(rows: int, columns: int) -> Tensor:
    """Patch centres (rows * columns, 2) as (x, y): x in ±sqrt(W/H), y in ±sqrt(H/W), so the area is always 4.

    Cached by (rows, columns): a 2 x 4 grid differs from a 4 x 2 grid. The caller must not modify the result.
    """
    reach_x, reach_y = math.sqrt(columns / rows), math.sqrt(rows / columns)
    x = ((torch.arange(columns, dtype=torch.float64) + 0.5) / columns * 2 - 1) * reach_x
    y = ((torch.arange(rows, dtype=torch.float64) + 0.5) / rows * 2 - 1) * reach_y
    return torch.stack([x.repeat(rows), y.repeat_interleave(columns)], dim=-1)


@lru_cache(maxsize=_KEPT_GRIDS)
def indices(rows: int, columns: int, first: int) -> Tensor:
    """Columns and rows of patches (rows * columns, 2) as (x, y), counted from `first`."""
    x, y = torch.arange(columns, dtype=torch.float64) + first, torch.arange(rows, dtype=torch.float64) + first
    return torch.stack([x.repeat(rows), y.repeat_interleave(columns)], dim=-1)


def positions(grids: Sequence[Grid], prefix: int, first: int | None = None) -> Tensor:
    """Coordinates (tokens, 2) of packed images, or `indices` from `first`; the prefix of each image (class token,
    registers) is at the origin."""
    origin = torch.zeros(prefix, 2, dtype=torch.float64)
    places = [coordinates(*grid) if first is None else indices(*grid, first) for grid in grids]
    pieces = [piece for place in places for piece in (origin, place)]
    return torch.cat(pieces) if pieces else origin[:0]


def resized(table_GC: Tensor, grids: Sequence[Grid]) -> Tensor:
    """Learned vectors of a square grid (side * side, C), resized bilinearly to the grids of packed images (patches, C).

    The result of torch's `interpolate` (align_corners=False, no antialiasing), token by token.
    """
    side = math.isqrt(len(table_GC))
    if not grids:
        return table_GC[:0]
    near, weights = (torch.cat(parts) for parts in zip(*(_corners(*grid, side) for grid in grids), strict=True))
    near, weights = near.to(table_GC.device), weights.to(table_GC)
    vectors: Tensor = embedding_bag(near, table_GC, mode="sum", per_sample_weights=weights)
    return vectors


@lru_cache(maxsize=_KEPT_GRIDS)
def _corners(rows: int, columns: int, side: int) -> tuple[Tensor, Tensor]:
    """The four places of the table around each patch and their weights, (rows * columns, 4) each."""
    (top, down), (left, across) = _ends(rows, side), _ends(columns, side)
    near = (top[:, None, :, None] * side + left[None, :, None, :]).reshape(-1, 4)
    weights = (down[:, None, :, None] * across[None, :, None, :]).reshape(-1, 4)
    return near, weights


def _ends(count: int, side: int) -> tuple[Tensor, Tensor]:
    """The two neighbours among `side` places of each of `count` places, and their weights (count, 2)."""
    at = ((torch.arange(count, dtype=torch.float64) + 0.5) * side / count - 0.5).clamp(0, side - 1)
    low = at.floor()
    ends = torch.stack([low, (low + 1).clamp(max=side - 1)], dim=-1).long()
    return ends, torch.stack([1 - (at - low), at - low], dim=-1)


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
