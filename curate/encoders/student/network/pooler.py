"""Attention poolers on packed tokens: the student's own (PE), and a frozen one of a teacher.

A teacher's pooler on the student's patches predicts the teacher's summary (AMoE, for SigLIP2). Gradients flow through
it to the patches; its weights belong to the teacher, never change, and are not in the student's checkpoints.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from curate.encoders.student.network.attention import runs
from curate.encoders.student.network.layers import NORMS


class PackedPooler(nn.Module):
    """pooler(tokens (N, P) of packed images, tokens per image) -> (images, D), in the pooler's dtype."""

    def __init__(self, module: nn.Module) -> None:
        """module: timm's `attn_pool`, (images, tokens, P) and a mask -> (images, D)."""
        super().__init__()
        self.module = module

    def forward(self, patches_NP: Tensor, lengths: Sequence[int], bias_N: Tensor | None = None) -> Tensor:
        """bias: added to the scores of each token, see `TokenSet.bias`."""
        example = next(self.module.parameters())
        x = patches_NP.to(example.device, example.dtype)
        if not lengths:
            return self._padded(x.new_zeros(1, 1, x.shape[-1]) + x.sum(), [1])[:0]
        bias = None if bias_N is None else bias_N.to(x)
        if x.device.type == "cpu":
            return self._by_length(x, lengths, bias)
        images = pad_sequence(x.split(list(lengths)), batch_first=True)
        biases = None if bias is None else pad_sequence(bias.split(list(lengths)), batch_first=True)
        return self._padded(images, lengths, biases)

    def _by_length(self, x: Tensor, lengths: Sequence[int], bias_N: Tensor | None) -> Tensor:
        """One call per run of neighbouring images of equal length: nothing is computed on padding."""
        pooled, first = list[Tensor](), 0
        for run in runs(lengths):
            own = slice(first, first + run[0] * run[1])
            mask = None if bias_N is None else bias_N[own].unflatten(0, run)[:, None, None, :]
            pooled.append(self.module(x[own].unflatten(0, run), attn_mask=mask))
            first = own.stop
        return torch.cat(pooled)

    def _padded(self, images_BLP: Tensor, lengths: Sequence[int], bias_BL: Tensor | None = None) -> Tensor:
        """One call, because on a GPU many small ones would wait for each other."""
        counts = torch.tensor(lengths, device=images_BLP.device)
        mask = torch.arange(images_BLP.shape[1], device=counts.device) < counts[:, None]
        if bias_BL is not None:
            mask = bias_BL.masked_fill(~mask, float("-inf"))
        pooled: Tensor = self.module(images_BLP, attn_mask=mask[:, None, None, :])
        return pooled


class FrozenPooler(PackedPooler):
    """A copy of a teacher's pooler, so that the teacher can have another dtype."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(copy.deepcopy(module).eval().requires_grad_(False))

    def train(self, mode: bool = True) -> Self:
        """Stays in evaluation mode."""
        return super().train(False)


def attention_pool(width: int, heads: int, norm: str) -> PackedPooler:
    """The student's own: a learned query, and an MLP of 4 x width with a residual connection (PE, Sec. 2.1)."""
    from timm.layers.attention_pool import AttentionPoolLatent

    layers: dict[str, Any] = {"norm_layer": NORMS[norm]}  # timm takes any callable, but declares types
    return PackedPooler(AttentionPoolLatent(width, num_heads=heads, mlp_ratio=4.0, **layers))


def new_pooler(values: dict[str, Any]) -> FrozenPooler:
    """timm's attention pooler of the sizes in `values` (see `distill.export`), with random weights."""
    from timm.layers.attention_pool import AttentionPoolLatent

    out, eps = values["out"], values.get("eps")
    layers: dict[str, Any] = {  # timm takes any callable, but declares types
        "norm_layer": None if eps is None else partial(nn.LayerNorm, eps=eps),
        "act_layer": partial(nn.GELU, approximate="tanh") if values.get("tanh") else nn.GELU,
    }
    return FrozenPooler(
        AttentionPoolLatent(
            values["width"],
            out_features=out,
            num_heads=values["heads"],
            mlp_ratio=(values["hidden"] + 0.5) / out if out else 4.0,  # timm rounds the product down
            qkv_bias=values["bias"],
            q_proj=values["project_query"],
            latent_len=values["latents"],
            pool_type=values["pool"],
            **layers,
        )
    )
