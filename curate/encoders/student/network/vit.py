"""The backbone: a vision transformer on packed images. RMSNorm, qk-norm, SwiGLU (dense, or a mixture of experts),
Golden RoPE, CLS and registers; the patch embedding alone has a bias."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu
from torch.utils.checkpoint import checkpoint

from curate.core.errors import InputError
from curate.encoders.student.config import StudentConfig
from curate.encoders.student.network.attention import Plan, attention_plan
from curate.encoders.student.network.moe import Moe, recomputation
from curate.encoders.student.network.rope import Grid, directions, positions, rotate, rotations
from curate.encoders.student.network.tokens import Layout, Reduce, TokenSet, chosen, reducer, time_vectors, tubes
from curate.encoders.student.reduction import Reduction


@dataclass
class VitOutput:
    summary: Tensor
    """CLS (images, width)."""
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

    def forward(self, x_NC: Tensor, rotation: Tensor, plan: Plan, reduce: Reduce | None = None) -> Any:
        """With `reduce`, the tokens that it leaves (N', C), and which they are."""
        q, k, v = self.before(x_NC, rotation)
        if reduce is None:
            return self.after(x_NC, plan(q, k, v))
        x_NC, left = reduce(self.attended(x_NC, plan(q, k, v)), q, k)
        return self.fed(x_NC), left

    def before(self, x_NC: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.attention.project(self.attention_norm(x_NC), rotation)

    def after(self, x_NC: Tensor, mixed_NHD: Tensor) -> Tensor:
        return self.fed(self.attended(x_NC, mixed_NHD))

    def attended(self, x_NC: Tensor, mixed_NHD: Tensor) -> Tensor:
        return x_NC + self.attention.out(mixed_NHD.flatten(1))

    def fed(self, x_NC: Tensor) -> Tensor:
        return x_NC + self.mlp(self.mlp_norm(x_NC))


class VisionTransformer(nn.Module):
    """forward(patches (tokens, patch * patch * 3) of 8 bits, grid of each image) -> VitOutput. Takes 0 images too."""

    def __init__(self, config: StudentConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = "auto"
        """Backend of `attention_plan`."""
        self.checkpointing = False
        """Recompute the activations of blocks in the backward pass: less memory, the same gradients to the bit."""
        self.reduction = config.reduction
        """May be changed for evaluation."""
        self.embed = nn.Linear(config.tubelet * config.patch**2 * 3, config.width)
        self.prefix = nn.Parameter(torch.empty(1 + config.registers, config.width))
        self.blocks = cast(Sequence[Block], nn.ModuleList(Block(config) for _ in range(config.depth)))
        self.norm = nn.RMSNorm(config.width)
        self.apply(initialise)
        for moe in self.moes():
            moe.initialise()
        nn.init.normal_(self.prefix, std=0.02)

    def forward(
        self,
        patches: Tensor,
        grids: Sequence[Grid],
        places: Sequence[NDArray[np.int64]] | None = None,
        masked: Sequence[tuple[Tensor, Tensor]] = (),
        frames: Sequence[int] | None = None,
    ) -> VitOutput:
        """places: of each image, which patches of its grid are given, from 0, row by row; None: all of them. masked:
        masks (N,) of patches, each with the embedding (width,) that replaces theirs. frames: of each clip, for
        `tubelet`; None: all are images."""
        device, dtype, prefix = self.prefix.device, self.prefix.dtype, len(self.prefix)
        size, steps, clips = self.config.tubelet, [1] * len(grids), False
        if size > 1:
            clips = frames is not None and len(frames) < len(grids)
            patches, grids, steps = tubes(patches, grids, frames or steps, size)
        counts = [count * rows * columns for (rows, columns), count in zip(grids, steps, strict=True)]
        position = positions([grid for grid, count in zip(grids, steps, strict=True) for _ in range(count)], 0)
        if places is not None:
            position, counts = position[chosen(counts, places)], [len(own) for own in places]
        embedded = self.embed(patches.to(dtype) / 127.5 - 1.0)
        if clips:
            embedded = embedded + time_vectors(grids, steps, self.config.width).to(embedded)
        for mask, embedding in masked:
            embedded = torch.where(mask[:, None], embedding.to(embedded.dtype), embedded)
        layout = Layout(counts, prefix, torch.device("cpu"))
        position = layout.join(position.new_zeros(prefix, 2), position)
        tokens = TokenSet(counts, prefix, position.to(device, torch.promote_types(dtype, torch.float32)))
        x = Layout(counts, prefix, device).join(self.prefix, embedded.to(dtype))
        x, tokens = self._through_blocks(x, tokens)
        first, rest = Layout(tokens.patches, prefix, device).split(self.norm(x))
        return VitOutput(first[:, 0], first[:, 1:], rest, tokens.patches, clips or bool(self.reduction))

    def _through_blocks(self, x: Tensor, tokens: TokenSet) -> tuple[Tensor, TokenSet]:
        recompute = self.checkpointing and torch.is_grad_enabled()
        plan, rotation = attend(self.config, tokens, self.attention)
        for layer, block in enumerate(self.blocks, 1):
            reduce = reducer(self.reduction, layer, tokens) if self.reduction else None
            inputs = (x, rotation, plan) if reduce is None else (x, rotation, plan, reduce)
            if recompute:
                x = checkpoint(block, *inputs, use_reentrant=False, context_fn=_contexts)
            else:
                x = block(*inputs)
            if reduce is not None:
                x, tokens = x
                plan, rotation = attend(self.config, tokens, self.attention, rotation)
        return x, tokens

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


@contextmanager
def all_patches(backbone: VisionTransformer) -> Iterator[None]:
    """Without `keep` and `merge` inside, for an output of each patch at each layer."""
    before, backbone.reduction = backbone.reduction, Reduction()
    try:
        yield
    finally:
        backbone.reduction = before


def attend(
    config: StudentConfig, tokens: TokenSet, backend: str = "auto", before: Tensor | None = None
) -> tuple[Plan, Tensor]:
    """The attention of blocks with these tokens, and their rotations. backend: of `attention_plan`; before: rotations
    of the layer before, which tokens that did not move keep."""
    at = tokens.positions
    head_dim = config.head_dim or config.width // config.heads
    waves = _waves(config.heads, head_dim, at.device, at.dtype)
    if before is None or tokens.stayed is None or tokens.moved is None:
        rotation = rotations(waves, at)
    else:
        moved = rotations(waves, at[tokens.moved])
        rotation = before.index_select(0, tokens.stayed).index_copy_(0, tokens.moved, moved)
    return attention_plan(tokens.lengths, at.device, backend, tokens.bias), rotation


@lru_cache(maxsize=16)
def _waves(heads: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return directions(heads, head_dim).to(device, dtype)


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of the forward pass and of its recomputation."""
    return nullcontext(), recomputation()


def initialise(module: nn.Module) -> None:
    """Initial weights of linear layers, for `Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
