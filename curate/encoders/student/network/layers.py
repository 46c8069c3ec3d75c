"""Layers that images' and texts' networks share: norms and MLPs by name, and stochastic depth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from curate.core.hashing import ranks_of_words

NORMS: dict[str, type[nn.RMSNorm | nn.LayerNorm]] = {"rms": nn.RMSNorm, "layer": nn.LayerNorm}
"""A LayerNorm's epsilon is 1e-5, as CLIP's and PE's."""


def mlp_of(kind: str, width: int, hidden: int, bias: bool) -> nn.Module:
    return SwiGLU(width, hidden, bias) if kind == "swiglu" else Mlp(width, hidden, bias, quick=kind == "quick_gelu")


class SwiGLU(nn.Module):
    """Shazeer 2020, Eq. 6."""

    def __init__(self, width: int, hidden: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(silu(gate) * up)


class Mlp(nn.Module):
    """Two layers with GELU, or with `quick` its approximation x * sigmoid(1.702 x), which OpenAI's CLIP has."""

    def __init__(self, width: int, hidden: int, bias: bool = True, *, quick: bool = False) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, width, bias=bias)
        self.quick = quick

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        return self.down(inner * torch.sigmoid(1.702 * inner) if self.quick else gelu(inner))


def kept_branches(draws: NDArray[np.uint64], rate: float, depth: int) -> Tensor:
    """Factors of a block's two branches for each image (depth, images, 2) float32: 0, or 1 / (share that is kept).

    draws: a uniform 64-bit number of each image, from which all its decisions follow. The probability of 0 rises
    linearly from 0 in the first block to `rate` in the last.
    """
    words, numbers = np.stack([draws, draws], axis=1).repeat(2 * depth, axis=0), np.arange(2 * depth)
    uniform = ranks_of_words(0, words, np.tile(numbers, len(draws))).astype(np.float64) / 2.0**64
    dropped = np.linspace(0.0, rate, depth).repeat(2)
    factors = (uniform.reshape(len(draws), 2 * depth) >= dropped) / (1.0 - dropped)
    return torch.from_numpy(factors.astype(np.float32)).view(len(draws), depth, 2).transpose(0, 1)


def each_token(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """Values of each image (images, …) -> of each of its tokens (tokens, …). lengths: tokens of each image."""
    counts = torch.tensor(lengths, dtype=torch.int64, device=values.device)
    return values.repeat_interleave(counts, dim=0, output_size=sum(lengths))
