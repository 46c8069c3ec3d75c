"""The backbone: a vision transformer on packed images. RMSNorm, qk-norm, SwiGLU (dense, or a mixture of experts),
Golden RoPE, CLS and registers, no biases but the patch embedding's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu
from torch.utils.checkpoint import checkpoint

from distill.models.attention import Plan, attention_plan
from distill.models.layout import Layout
from distill.models.moe import Moe, MoeConfig, again
from distill.models.rope import Grid, directions, places, rotate, rotations


@dataclass(frozen=True)
class VitConfig:
    patch: int
    width: int
    depth: int
    heads: int
    mlp_ratio: float = 8 / 3
    """Hidden width of a dense SwiGLU over the model's width."""
    registers: int = 4
    head_dim: int | None = None
    """None: width / heads."""
    moe: MoeConfig | None = None
    """None: dense."""


@dataclass
class VitOutput:
    summary: Tensor
    """CLS (images, width)."""
    registers: Tensor
    """(images, registers, width)."""
    patches: Tensor
    """(patches of all images, width), in the order given."""


class Attention(nn.Module):
    """Before and after an attention plan."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * heads * head_dim, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(head_dim), nn.RMSNorm(head_dim)
        self.out = nn.Linear(heads * head_dim, width, bias=False)

    def project(self, x_NC: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v (tokens, heads, head_dim); q and k normalised and turned."""
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
    """forward(tokens (N, C), rotation, plan) -> (N, C). Only the plan knows where an image begins."""

    def __init__(self, config: VitConfig) -> None:
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


class VisionTransformer(nn.Module):
    """forward(patches (tokens, patch * patch * 3) of 8 bits, grids per image) -> VitOutput. No image is fine too."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = "auto"
        """Backend, see `attention_plan`."""
        self.checkpointing = False
        """Blocks' activations are computed again for the backward pass rather than kept."""
        self.embed = nn.Linear(config.patch**2 * 3, config.width)
        self.prefix = nn.Parameter(torch.empty(1 + config.registers, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.RMSNorm(config.width)
        self.apply(_initialise)
        for moe in self.moes():
            moe.initialise()
        nn.init.normal_(self.prefix, std=0.02)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> VitOutput:
        device, dtype, prefix = self.prefix.device, self.prefix.dtype, len(self.prefix)
        layout = Layout([rows * columns for rows, columns in grids], prefix, device)
        plan = attention_plan(layout.lengths, device, self.attention)
        at = places(grids, prefix).to(device, torch.promote_types(dtype, torch.float32))
        head_dim = self.config.head_dim or self.config.width // self.config.heads
        rotation = rotations(_waves(self.config.heads, head_dim, at.device, at.dtype), at)
        x = layout.join(self.prefix, self.embed(patches.to(dtype) / 127.5 - 1.0).to(dtype))
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, rotation, plan, use_reentrant=False, context_fn=_contexts)
            else:
                x = block(x, rotation, plan)
        first, rest = layout.split(self.norm(x))
        return VitOutput(summary=first[:, 0], registers=first[:, 1:], patches=rest)

    def moes(self) -> list[Moe]:
        """Of the blocks that have one, in order."""
        return [module for module in self.modules() if isinstance(module, Moe)]

    def expert_counts(self) -> Tensor | None:
        """Tokens by block and expert (moe blocks, experts) since the last `balance`; None for a dense student.

        Forwards without gradients are not counted, nor what activation checkpointing computes again.
        """
        moes = self.moes()
        return torch.stack([moe.counts for moe in moes]) if moes else None

    def balance(self, counts: Tensor) -> None:
        """After an update: counts as from `expert_counts`, summed over ranks."""
        for moe, own in zip(self.moes(), counts, strict=True):
            moe.balance(own)


@lru_cache(maxsize=16)
def _waves(heads: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return directions(heads, head_dim).to(device, dtype)


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Of the forward pass, and of the same computed again."""

    return nullcontext(), again()


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
