"""A small vision transformer on packed images: RMSNorm, qk-norm, SwiGLU, Golden RoPE, CLS and registers, no biases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from distill.models.attention import runs, sdpa_loop
from distill.models.rope import directions, rotate, rotations

Grid = tuple[int, int]


@dataclass(frozen=True)
class VitConfig:
    patch: int
    width: int
    depth: int
    heads: int
    mlp_ratio: float = 8 / 3
    """Hidden width of the SwiGLU over the model's width."""
    registers: int = 4


@dataclass
class VitOutput:
    summary: Tensor
    """CLS (images, width)."""
    registers: Tensor
    """(images, registers, width)."""
    patches: Tensor
    """(patches of all images, width), in the order given."""


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_NC: Tensor, rotation: Tensor, lengths: Sequence[int]) -> Tensor:
        q, k, v = self.qkv(x_NC).view(len(x_NC), 3, self.heads, -1).unbind(1)
        q, k = rotate(self.q_norm(q), rotation), rotate(self.k_norm(k), rotation)
        return self.out(sdpa_loop(q.to(v.dtype), k.to(v.dtype), v, lengths).flatten(1))


class SwiGLU(nn.Module):
    """Shazeer 2020, Eq. 6."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(nn.functional.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width), Attention(width, heads)
        self.mlp_norm, self.mlp = nn.RMSNorm(width), SwiGLU(width, hidden)

    def forward(self, x_NC: Tensor, rotation: Tensor, lengths: Sequence[int]) -> Tensor:
        x_NC = x_NC + self.attention(self.attention_norm(x_NC), rotation, lengths)
        return x_NC + self.mlp(self.mlp_norm(x_NC))


class VisionTransformer(nn.Module):
    """forward(patches (tokens, patch * patch * 3) of 8 bits, grids per image) -> VitOutput."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.config = config
        hidden = max(8, round(config.width * config.mlp_ratio / 8) * 8)
        self.embed = nn.Linear(config.patch**2 * 3, config.width)
        self.prefix = nn.Parameter(torch.empty(1 + config.registers, config.width))
        self.blocks = nn.ModuleList(Block(config.width, config.heads, hidden) for _ in range(config.depth))
        self.norm = nn.RMSNorm(config.width)
        self._waves = directions(config.heads, config.width // config.heads)
        self._rotations: dict[tuple[Grid, torch.dtype, torch.device], Tensor] = {}
        self.apply(_initialise)
        nn.init.normal_(self.prefix, std=0.02)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> VitOutput:
        prefix = len(self.prefix)
        x = self.embed(patches.to(self.embed.weight.dtype) / 127.5 - 1.0)
        lengths = [rows * columns for rows, columns in grids]
        x = self._with_prefix(x, lengths)
        rotation = torch.cat([self._rotation(grid, self.prefix) for grid in grids], dim=1)
        full = [prefix + length for length in lengths]
        for block in self.blocks:
            x = block(x, rotation, full)
        return _split(self.norm(x), full, prefix)

    def _with_prefix(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """Put CLS and registers before each image's patches."""
        pieces, start = [], 0
        prefix = self.prefix.to(x.dtype)
        for images, length in runs(lengths):
            stop = start + images * length
            own = prefix.expand(images, -1, -1)
            pieces.append(torch.cat([own, x[start:stop].view(images, length, -1)], dim=1).flatten(0, 1))
            start = stop
        return torch.cat(pieces)

    def _rotation(self, grid: Grid, like: Tensor) -> Tensor:
        """Kept per (rows, columns), never per number of patches: a 2 x 4 grid is not a 4 x 2 grid."""
        place = (grid, like.dtype, like.device)
        if place not in self._rotations:
            self._rotations[place] = rotations(self._waves, *grid, prefix=len(self.prefix)).to(like)
        return self._rotations[place]


def _split(x: Tensor, lengths: Sequence[int], prefix: int) -> VitOutput:
    heads, patches, start = [], [], 0
    for images, length in runs(lengths):
        stop = start + images * length
        run = x[start:stop].view(images, length, -1)
        heads.append(run[:, :prefix])
        patches.append(run[:, prefix:].flatten(0, 1))
        start = stop
    first = torch.cat(heads)
    return VitOutput(summary=first[:, 0], registers=first[:, 1:], patches=torch.cat(patches))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
