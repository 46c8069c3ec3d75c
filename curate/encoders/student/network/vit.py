"""The backbone: a vision transformer on packed images.

By default AMoE's: RMSNorm, qk-norm, SwiGLU (dense, or a mixture of experts), Golden RoPE, class token and registers;
the patch embedding alone has a bias. `StudentConfig` has the options that make it a CLIP's or PE's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from torch.utils.checkpoint import checkpoint

from curate.encoders.student.config import HALF, StudentConfig
from curate.encoders.student.network.attention import Plan, attention_plan
from curate.encoders.student.network.layers import NORMS, each_token, kept_branches, mlp_of
from curate.encoders.student.network.moe import Moe, recomputation
from curate.encoders.student.network.pooler import attention_pool
from curate.encoders.student.network.rope import Grid, axes, directions, positions, resized, rotate, rotations


@dataclass
class VitOutput:
    summary: Tensor
    """Class token, or what `pool` makes of the tokens (images, width)."""
    registers: Tensor
    """(images, registers, width)."""
    patches: Tensor
    """(patches of all images, width), in the order of the input."""


class Attention(nn.Module):
    """The projections before and after an attention plan."""

    def __init__(self, config: StudentConfig) -> None:
        super().__init__()
        width, heads, head_dim = config.width, config.heads, config.attention_dim
        self.heads, self.qk_norm = heads, config.qk_norm
        self.qkv = nn.Linear(width, 3 * heads * head_dim, bias=config.bias)
        if config.qk_norm:
            self.q_norm, self.k_norm = nn.RMSNorm(head_dim), nn.RMSNorm(head_dim)
        self.out = nn.Linear(heads * head_dim, width, bias=config.bias)

    def project(self, x_NC: Tensor, rotation: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v (tokens, heads, head_dim); q and k normalised and rotated."""
        qkv = self.qkv(x_NC).unflatten(1, (3, self.heads, -1))
        wide = torch.promote_types(qkv.dtype, torch.float32)
        qk = qkv[:, :2].to(wide)
        if self.qk_norm:
            scale = torch.stack([self.q_norm.weight, self.k_norm.weight])[:, None]
            qk = rms_norm(qk, scale.shape[-1:]) * scale
        if rotation is not None:
            qk = rotate(qk, rotation[:, None])
        q, k = qk.to(qkv.dtype).unbind(1)
        return q, k, qkv[:, 2]


class Block(nn.Module):
    """forward(tokens (N, C), rotation, plan) -> (N, C). Only the plan separates one image from the next."""

    def __init__(self, config: StudentConfig) -> None:
        super().__init__()
        width = config.width
        self.attention_norm = NORMS[config.norm](width)
        self.attention = Attention(config)
        self.mlp_norm = NORMS[config.norm](width)
        moe, hidden = config.moe, config.mlp_hidden
        self.mlp = mlp_of(config.mlp, width, hidden, config.bias) if moe is None else Moe(width, moe)
        self.scaled = config.layer_scale is not None
        if config.layer_scale is not None:
            self.attention_scale = nn.Parameter(torch.full((width,), config.layer_scale))
            self.mlp_scale = nn.Parameter(torch.full((width,), config.layer_scale))

    def forward(self, x_NC: Tensor, rotation: Tensor | None, plan: Plan, kept_N2: Tensor | None = None) -> Tensor:
        """kept: factors of the two branches for each token, see `kept_branches`."""
        return self.after(x_NC, plan(*self.before(x_NC, rotation)), kept_N2)

    def before(self, x_NC: Tensor, rotation: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        return self.attention.project(self.attention_norm(x_NC), rotation)

    def after(self, x_NC: Tensor, mixed_NHD: Tensor, kept_N2: Tensor | None = None) -> Tensor:
        return self.fed(self.attended(x_NC, mixed_NHD, kept_N2), kept_N2)

    def attended(self, x_NC: Tensor, mixed_NHD: Tensor, kept_N2: Tensor | None = None) -> Tensor:
        added = self.attention.out(mixed_NHD.flatten(1))
        added = added * self.attention_scale if self.scaled else added
        return x_NC + (added if kept_N2 is None else added * kept_N2[:, :1])

    def fed(self, x_NC: Tensor, kept_N2: Tensor | None = None) -> Tensor:
        added = self.mlp(self.mlp_norm(x_NC))
        added = added * self.mlp_scale if self.scaled else added
        return x_NC + (added if kept_N2 is None else added * kept_N2[:, 1:])


class Layout:
    """Places of prefixes (class token, registers) and patches among the tokens of all images; built once per forward.

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

    prefix: Tensor
    """The class token, if any, and the registers (P, width)."""

    def __init__(self, config: StudentConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = "auto"
        """Backend of `attention_plan`."""
        self.checkpointing = False
        """Recompute the activations of blocks in the backward pass: less memory, the same gradients to the bit."""
        self.embed = nn.Linear(config.patch**2 * 3, config.width, bias=not config.pre_norm)
        prefix = torch.empty(config.prefix, config.width)
        if config.prefix:
            self.prefix = nn.Parameter(prefix)
        else:
            self.register_buffer("prefix", prefix, persistent=False)  # an empty weight has no use
        if config.position_grid is not None:
            places = int(config.class_token) + config.position_grid**2
            self.positions = nn.Parameter(torch.empty(places, config.width))
        self.pre_norm = NORMS[config.norm](config.width) if config.pre_norm else nn.Identity()
        self.blocks = cast(Sequence[Block], nn.ModuleList(Block(config) for _ in range(config.depth)))
        self.norm = NORMS[config.norm](config.width)
        if config.pool == "attention":
            self.pool = attention_pool(config.width, config.pool_heads, config.norm)
        self.apply(_initialise)
        for moe in self.moes():
            moe.initialise()
        nn.init.normal_(self.prefix, std=0.02)
        if config.absolute:
            nn.init.normal_(self.positions, std=0.02)

    def forward(self, patches: Tensor, grids: Sequence[Grid], draws: NDArray[np.uint64] | None = None) -> VitOutput:
        """draws: in training, a number of each image that decides which branches it skips (`drop_path`)."""
        config, device, dtype = self.config, self.prefix.device, self.prefix.dtype
        layout = Layout([rows * columns for rows, columns in grids], len(self.prefix), device)
        plan = attention_plan(layout.lengths, device, self.attention)
        rotation, kept = self.rotation(grids), None
        if draws is not None and config.drop_path:
            kept = kept_branches(draws, config.drop_path, config.depth).to(device, dtype)
        x = self.pre_norm(self.tokens(patches, grids, layout))
        for number, block in enumerate(self.blocks):
            own = None if kept is None else each_token(kept[number], layout.lengths)
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, rotation, plan, own, use_reentrant=False, context_fn=_contexts)
            else:
                x = block(x, rotation, plan, own)
        x = self.norm(x)
        first, rest = layout.split(x)
        return VitOutput(self.summary(x, first, rest, layout), first[:, int(config.class_token) :], rest)

    def tokens(self, patches: Tensor, grids: Sequence[Grid], layout: Layout) -> Tensor:
        """The embedded patches with their learned positions, and the prefix of each image (tokens, C)."""
        dtype, prefix = self.prefix.dtype, self.prefix
        embedded = self.embed(self.pixels(patches.to(dtype))).to(dtype)
        if self.config.absolute:
            own = int(self.config.class_token)
            embedded = embedded + resized(self.positions[own:], grids)
            prefix = torch.cat([prefix[:own] + self.positions[:own], prefix[own:]])
        return layout.join(prefix, embedded)

    def pixels(self, patches: Tensor) -> Tensor:
        """Bytes -> values that the student was trained on."""
        config = self.config
        if (config.pixel_mean, config.pixel_std) == (HALF, HALF):
            return patches / 127.5 - 1.0
        mean, std = (patches.new_tensor(values) for values in (config.pixel_mean, config.pixel_std))
        return ((patches / 255).unflatten(-1, (-1, 3)) - mean).div(std).flatten(-2)

    def rotation(self, grids: Sequence[Grid]) -> Tensor | None:
        """See `rotations`; (tokens, 1, …) if all heads share them, None without rotary positions."""
        config, dtype = self.config, torch.promote_types(self.prefix.dtype, torch.float32)
        if config.positions == "absolute":
            return None
        first = int(config.class_token) if config.axial else None
        position = positions(grids, config.prefix, first).to(self.prefix.device, dtype)
        return rotations(_waves(config.axial, config.heads, config.attention_dim, position.device, dtype), position)

    def summary(self, x_NC: Tensor, prefixes_BPC: Tensor, patches_NC: Tensor, layout: Layout) -> Tensor:
        """(images, C)."""
        if self.config.pool == "cls":
            return prefixes_BPC[:, 0]
        if self.config.pool == "attention":
            pooled: Tensor = self.pool(x_NC, layout.lengths)
            return pooled
        lengths = torch.tensor(layout.lengths, dtype=torch.int64, device=x_NC.device) - prefixes_BPC.shape[1]
        image = torch.arange(len(lengths), device=x_NC.device).repeat_interleave(lengths, output_size=len(patches_NC))
        sums = patches_NC.new_zeros(len(lengths), patches_NC.shape[-1]).index_add(0, image, patches_NC)
        return sums / lengths[:, None].to(sums)

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
def _waves(axial: bool, heads: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return (axes(head_dim) if axial else directions(heads, head_dim)).to(device, dtype)


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of the forward pass and of its recomputation."""
    return nullcontext(), recomputation()


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
