"""The backbone: a vision transformer on packed images. RMSNorm, qk-norm, SwiGLU (dense, or a mixture of experts),
Golden RoPE, CLS and registers; the patch embedding alone has a bias."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu
from torch.utils.checkpoint import checkpoint

from curate.encoders.student.config import StudentConfig
from curate.encoders.student.network.attention import Plan, attention_plan
from curate.encoders.student.network.moe import Moe, recomputation
from curate.encoders.student.network.rope import Grid, directions, positions, rotate, rotations


@dataclass
class VitOutput:
    summary: Tensor
    """CLS (images, width)."""
    registers: Tensor
    """(images, registers, width)."""
    patches: Tensor
    """(patches of all images, width), in the order of the input."""


class Attention(nn.Module):
    """The projections before and after an attention plan."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * heads * head_dim, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(head_dim), nn.RMSNorm(head_dim)
        self.out = nn.Linear(heads * head_dim, width, bias=False)

    def project(self, x_NC: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v (tokens, heads, head_dim); q and k normalised and rotated."""
        qkv = self.qkv(x_NC).unflatten(1, (3, self.heads, -1))
        scale = torch.stack([self.q_norm.weight, self.k_norm.weight])[:, None]
        wide = torch.promote_types(qkv.dtype, torch.float32)
        qk = rms_norm(qkv[:, :2].to(wide), scale.shape[-1:]) * scale
        q, k = rotate(qk, rotation[:, None]).to(qkv.dtype).unbind(1)
        return q, k, qkv[:, 2]


class SwiGLU(nn.Module):
    """Shazeer 2020, Eq. 6."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(silu(gate) * up)


class Block(nn.Module):
    """forward(tokens (N, C), rotation, plan) -> (N, C). Only the plan separates one image from the next."""

    def __init__(self, config: StudentConfig) -> None:
        super().__init__()
        width = config.width
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, config.heads, config.head_dim or width // config.heads)
        self.mlp_norm = nn.RMSNorm(width)
        hidden = max(8, round(width * config.mlp_ratio / 8) * 8)
        self.mlp = SwiGLU(width, hidden) if config.moe is None else Moe(width, config.moe)

    def forward(self, x_NC: Tensor, rotation: Tensor, plan: Plan) -> Tensor:
        return self.after(x_NC, plan(*self.before(x_NC, rotation)))

    def before(self, x_NC: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.attention.project(self.attention_norm(x_NC), rotation)

    def after(self, x_NC: Tensor, mixed_NHD: Tensor) -> Tensor:
        x_NC = x_NC + self.attention.out(mixed_NHD.flatten(1))
        return x_NC + self.mlp(self.mlp_norm(x_NC))


class Layout:
    """Positions of prefixes (CLS and registers) and patches among the tokens of all images; built once per forward.

    The tokens of an image are its prefix and then its patches.
    """

    def __init__(self, patches: Sequence[int], prefix: int, device: torch.device) -> None:
        """patches: number of patches of each image."""
        counts = np.asarray(patches, dtype=np.int64)
        self.lengths: list[int] = (counts + prefix).tolist()
        """Tokens of each image, including its prefix."""
        starts = np.cumsum(counts + prefix) - (counts + prefix)
        first = (starts[:, None] + np.arange(prefix)).ravel()
        rest = np.arange(counts.sum()) + np.repeat(np.arange(1, len(counts) + 1) * prefix, counts)
        self._prefix, self._patches = (torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in (first, rest))
        self._images, self._length = len(counts), prefix

    def join(self, prefix_PC: Tensor, patches_NC: Tensor) -> Tensor:
        """Puts the prefix before the patches of every image -> (tokens, C)."""
        tokens = patches_NC.new_empty(len(self._prefix) + len(self._patches), patches_NC.shape[-1])
        tokens.index_copy_(0, self._patches, patches_NC)
        return tokens.index_copy_(0, self._prefix, prefix_PC.to(tokens).repeat(self._images, 1))

    def split(self, tokens_NC: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens -> prefixes (images, P, C) and patches (N, C) of all images."""
        prefixes = tokens_NC.index_select(0, self._prefix)
        return prefixes.view(self._images, self._length, tokens_NC.shape[-1]), tokens_NC.index_select(0, self._patches)


class VisionTransformer(nn.Module):
    """forward(patches (tokens, patch * patch * 3) of 8 bits, grid of each image) -> VitOutput. Takes 0 images too."""

    def __init__(self, config: StudentConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = "auto"
        """Backend of `attention_plan`."""
        self.checkpointing = False
        """Recompute the activations of blocks in the backward pass: less memory, the same gradients to the bit."""
        self.embed = nn.Linear(config.patch**2 * 3, config.width)
        self.prefix = nn.Parameter(torch.empty(1 + config.registers, config.width))
        self.blocks = cast(Sequence[Block], nn.ModuleList(Block(config) for _ in range(config.depth)))
        self.norm = nn.RMSNorm(config.width)
        self.apply(_initialise)
        for moe in self.moes():
            moe.initialise()
        nn.init.normal_(self.prefix, std=0.02)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> VitOutput:
        device, dtype, prefix = self.prefix.device, self.prefix.dtype, len(self.prefix)
        layout = Layout([rows * columns for rows, columns in grids], prefix, device)
        plan = attention_plan(layout.lengths, device, self.attention)
        position = positions(grids, prefix).to(device, torch.promote_types(dtype, torch.float32))
        head_dim = self.config.head_dim or self.config.width // self.config.heads
        rotation = rotations(_waves(self.config.heads, head_dim, position.device, position.dtype), position)
        x = layout.join(self.prefix, self.embed(patches.to(dtype) / 127.5 - 1.0).to(dtype))
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, rotation, plan, use_reentrant=False, context_fn=_contexts)
            else:
                x = block(x, rotation, plan)
        first, rest = layout.split(self.norm(x))
        return VitOutput(summary=first[:, 0], registers=first[:, 1:], patches=rest)

    def moes(self) -> list[Moe]:
        """The mixtures of experts, from the first block to the last."""
        return [module for module in self.modules() if isinstance(module, Moe)]

    def expert_counts(self) -> Tensor | None:
        """Tokens per block and expert (moe blocks, experts) since the last `balance`; None for a dense student.

        Forwards without gradients do not count, nor does the recomputation of activation checkpointing.
        """
        moes = self.moes()
        return torch.stack([moe.counts for moe in moes]) if moes else None

    def balance(self, counts: Tensor) -> None:
        """Call after each update; counts: `expert_counts` summed over ranks."""
        for moe, own in zip(self.moes(), counts, strict=True):
            moe.balance(own)


@lru_cache(maxsize=16)
def _waves(heads: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return directions(heads, head_dim).to(device, dtype)


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of the forward pass and of its recomputation."""
    return nullcontext(), recomputation()


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
