"""The backbone: a vision transformer on packed images.

By default AMoE's: RMSNorm, qk-norm, SwiGLU (dense, or a mixture of experts), Golden RoPE, class token and registers;
the patch embedding alone has a bias. `StudentConfig` has the options that make it a CLIP's or PE's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from torch.utils.checkpoint import checkpoint

from curate.core.errors import InputError
from curate.encoders.student.config import HALF, StudentConfig
from curate.encoders.student.network.attention import Plan, attention_plan
from curate.encoders.student.network.layers import NORMS, each_token, kept_branches, mlp_of
from curate.encoders.student.network.moe import Moe, recomputation
from curate.encoders.student.network.pooler import attention_pool
from curate.encoders.student.network.rope import Grid, axes, directions, positions, resized, rotate, rotations
from curate.encoders.student.network.tokens import Layout, Reduce, TokenSet, chosen, means, reducer, time_vectors, tubes


@dataclass
class VitOutput:
    summary: Tensor
    """Class token, or what `pool` makes of the tokens (images, width)."""
    registers: Tensor
    """(images, registers, width)."""
    tokens: Tensor
    """Those that are left of the patches of all images (N, width), in order: all of them, unless `reduced`."""
    lengths: list[int]
    """Number of each image's tokens, N in total."""
    reduced: bool = False
    """Whether patches were dropped or merged (`student.keep`, `student.merge`), or those of frames are one token."""

    @property
    def patches(self) -> Tensor:
        """(patches of all images, width), in the order of the input. Raises InputError if there is no output of each
        patch."""
        if self.reduced:
            raise InputError("a student with `keep`, `merge` or `tubelet` has no output of each patch")
        return self.tokens


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
        moe, hidden = config.moe, max(8, round(width * config.mlp_ratio / 8) * 8)
        self.mlp = mlp_of(config.mlp, width, hidden, config.bias) if moe is None else Moe(width, moe)
        self.scaled = config.layer_scale is not None
        if config.layer_scale is not None:
            self.attention_scale = nn.Parameter(torch.full((width,), config.layer_scale))
            self.mlp_scale = nn.Parameter(torch.full((width,), config.layer_scale))

    def forward(
        self,
        x_NC: Tensor,
        rotation: Tensor | None,
        plan: Plan,
        lengths: Sequence[int] = (),
        kept_B2: Tensor | None = None,
        reduce: Reduce | None = None,
    ) -> Any:
        """lengths: tokens of each image; kept: factors of the two branches of each image, see `kept_branches`. With
        `reduce`, the tokens that it leaves (N', C), and which they are."""
        q, k, v = self.before(x_NC, rotation)
        kept_N2 = None if kept_B2 is None else each_token(kept_B2, lengths)
        if reduce is None:
            return self.after(x_NC, plan(q, k, v), kept_N2)
        x_NC, left = reduce(self.attended(x_NC, plan(q, k, v), kept_N2), q, k)
        return self.fed(x_NC, None if kept_B2 is None else each_token(kept_B2, left.lengths)), left

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
        self.reduction = config.reduction
        """May be changed for evaluation."""
        self.embed = nn.Linear(config.tubelet * config.patch**2 * 3, config.width, bias=not config.pre_norm)
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
        self.apply(initialise)
        for moe in self.moes():
            moe.initialise()
        nn.init.normal_(self.prefix, std=0.02)
        if config.absolute:
            nn.init.normal_(self.positions, std=0.02)

    def forward(
        self,
        patches: Tensor,
        grids: Sequence[Grid],
        places: Sequence[NDArray[np.int64]] | None = None,
        masked: Sequence[tuple[Tensor, Tensor]] = (),
        frames: Sequence[int] | None = None,
        draws: NDArray[np.uint64] | None = None,
    ) -> VitOutput:
        """places: of each image, which patches of its grid are given, from 0, row by row; None: all of them. masked:
        masks (N,) of patches, each with the embedding (width,) that replaces theirs. frames: of each clip, for
        `tubelet`; None: all are images. draws: in training, a number of each image that decides which branches it
        skips (`drop_path`)."""
        config, device, dtype = self.config, self.prefix.device, self.prefix.dtype
        steps, clips = [1] * len(grids), False
        if config.tubelet > 1:
            clips = frames is not None and len(frames) < len(grids)
            draws = draws[np.cumsum([0, *frames])[:-1]] if clips and frames and draws is not None else draws
            patches, grids, steps = tubes(patches, grids, frames or steps, config.tubelet)
        x = self.embed(self.pixels(patches.to(dtype)))
        for mask, embedding in masked:
            x = torch.where(mask[:, None], embedding.to(x.dtype), x)
        if clips:
            x = x + time_vectors(grids, steps, config.width).to(x)
        x, tokens = self._placed(
            x.to(dtype),
            [grid for grid, n in zip(grids, steps, strict=True) for _ in range(n)],
            [n * rows * columns for (rows, columns), n in zip(grids, steps, strict=True)],
            places,
        )
        kept = None
        if draws is not None and config.drop_path:
            kept = kept_branches(draws, config.drop_path, config.depth).to(device, dtype)
        x, tokens = self._through_blocks(self.pre_norm(x), tokens, kept)
        x = self.norm(x)
        first, rest = Layout(tokens.patches, config.prefix, device).split(x)
        summary, reduced = self.summary(x, first, rest, tokens), clips or bool(self.reduction)
        return VitOutput(summary, first[:, int(config.class_token) :], rest, tokens.patches, reduced)

    def _placed(
        self, x_NC: Tensor, grids: Sequence[Grid], counts: list[int], places: Sequence[NDArray[np.int64]] | None
    ) -> tuple[Tensor, TokenSet]:
        """Embedded patches with their learned positions, and the prefix of each image (tokens, C). grids: of each step
        in time; counts: patches of each image."""
        config, prefix, device = self.config, self.prefix, self.prefix.device
        at = positions(grids, 0, int(config.class_token) if config.axial else None)
        given = None if places is None else chosen(counts, places)
        if given is not None and places is not None:
            at, counts = at[given], [len(own) for own in places]
        if config.absolute:
            own = int(config.class_token)
            learned = resized(self.positions[own:], grids)
            x_NC = x_NC + (learned if given is None else learned[given.to(device)])
            prefix = torch.cat([prefix[:own] + self.positions[:own], prefix[own:]])
        at = Layout(counts, config.prefix, at.device).join(at.new_zeros(config.prefix, 2), at)
        wide = torch.promote_types(prefix.dtype, torch.float32)
        return Layout(counts, config.prefix, device).join(prefix, x_NC), TokenSet(
            counts, config.prefix, at.to(device, wide)
        )

    def _through_blocks(self, x: Tensor, tokens: TokenSet, kept: Tensor | None) -> tuple[Tensor, TokenSet]:
        """kept (depth, images, 2): see `kept_branches`."""
        recompute = self.checkpointing and torch.is_grad_enabled()
        plan, rotation = attend(self.config, tokens, self.attention)
        for layer, block in enumerate(self.blocks, 1):
            reduce = reducer(self.reduction, layer, tokens) if self.reduction else None
            inputs = (x, rotation, plan, tokens.lengths, None if kept is None else kept[layer - 1], reduce)
            if recompute:
                x = checkpoint(block, *inputs, use_reentrant=False, context_fn=_contexts)
            else:
                x = block(*inputs)
            if reduce is not None:
                x, tokens = x
                plan, rotation = attend(self.config, tokens, self.attention, rotation)
        return x, tokens

    def pixels(self, patches: Tensor) -> Tensor:
        """Bytes -> values that the student was trained on."""
        config = self.config
        if (config.pixel_mean, config.pixel_std) == (HALF, HALF):
            return patches / 127.5 - 1.0
        mean, std = (patches.new_tensor(values) for values in (config.pixel_mean, config.pixel_std))
        return ((patches / 255).unflatten(-1, (-1, 3)) - mean).div(std).flatten(-2)

    def summary(self, x_NC: Tensor, prefixes_BPC: Tensor, patches_NC: Tensor, tokens: TokenSet) -> Tensor:
        """(images, C)."""
        if self.config.pool == "cls":
            return prefixes_BPC[:, 0]
        if self.config.pool == "attention":
            pooled: Tensor = self.pool(x_NC, tokens.lengths, tokens.bias)
            return pooled
        if tokens.sizes is None:
            return means(patches_NC, tokens.patches)
        sizes = Layout(tokens.patches, tokens.prefix, x_NC.device).split(tokens.sizes[:, None].to(x_NC))[1]
        # over patches, whatever they are merged into
        return means(patches_NC * sizes, tokens.patches) / means(sizes, tokens.patches)

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


def attend(
    config: StudentConfig, tokens: TokenSet, backend: str = "auto", before: Tensor | None = None
) -> tuple[Plan, Tensor | None]:
    """The attention of blocks with these tokens, and their rotations: (tokens, 1, …) if all heads share them, None
    without rotary positions. backend: of `attention_plan`; before: rotations
    of the layer before, which tokens that did not move keep."""
    at = tokens.positions
    plan = attention_plan(tokens.lengths, at.device, backend, tokens.bias)
    if config.positions == "absolute":
        return plan, None
    waves = _waves(config.axial, config.heads, config.attention_dim, at.device, at.dtype)
    if before is None or tokens.stayed is None or tokens.moved is None:
        return plan, rotations(waves, at)
    moved = rotations(waves, at[tokens.moved])
    return plan, before.index_select(0, tokens.stayed).index_copy_(0, tokens.moved, moved)


@lru_cache(maxsize=16)
def _waves(axial: bool, heads: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return (axes(head_dim) if axial else directions(heads, head_dim)).to(device, dtype)


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of the forward pass and of its recomputation."""
    return nullcontext(), recomputation()


def initialise(module: nn.Module) -> None:
    """Initial weights of linear layers, for `Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
