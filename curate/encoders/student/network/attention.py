"""Attention within each image, for packed images of different lengths: three backends with the same result.

A plan is built once per forward and called by every block: (q, k, v) of (tokens, heads, head_dim) -> the same shape.

sdpa_loop   on any device: one call per run of neighbouring images of equal length, so batches are sorted by length
flex        FlexAttention (Dong et al. 2024) with a document mask; on a GPU, and without gradients on a CPU
varlen      FlashAttention's kernel for packed lengths; on a GPU, in 16 bits (in 32 bits, for evaluation, as flex)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from curate.core.errors import InputError, PreflightError

Plan = Callable[[Tensor, Tensor, Tensor], Tensor]

BACKENDS = ("sdpa_loop", "flex", "varlen")
_BLOCK = 128  # side of a tile of FlexAttention's masks, in tokens


def attention_backend(name: str, device: torch.device, precision: str = "bfloat16") -> str:
    """auto -> the backend for this device. Raises PreflightError for one that cannot train here in this precision."""
    if name == "auto":
        return "flex" if device.type == "cuda" else "sdpa_loop"
    if name in ("flex", "varlen") and device.type != "cuda":
        raise PreflightError(f"run.attention: {name!r} trains on a GPU only, not on {device}; use sdpa_loop")
    if name == "varlen" and precision != "bfloat16":
        raise PreflightError(
            f"run.attention: 'varlen' trains in 16 bits; set train.precision=bfloat16, not {precision}"
        )
    if name not in BACKENDS:
        raise PreflightError(f"run.attention: expected one of auto, {', '.join(BACKENDS)}, not {name!r}")
    return name


def attention_plan(
    lengths: Sequence[int], device: torch.device, backend: str = "auto", bias: Tensor | None = None
) -> Plan:
    """lengths: tokens per image; bias (tokens,): added to all scores of a token as a key, not with `varlen`."""
    if backend == "auto":
        backend = attention_backend(backend, device)
    if backend == "varlen":
        if bias is not None:
            raise InputError("run.attention: 'varlen' cannot weigh merged tokens (student.merge); use flex")
        return Varlen(lengths, device)
    return Flex(lengths, device, bias) if backend == "flex" else Loop(lengths, bias)


def runs(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring images of equal length, as (images, length)."""
    return [(len(list(group)), length) for length, group in groupby(lengths)]


class Loop:
    """The result of one call of SDPA per image."""

    def __init__(self, lengths: Sequence[int], bias: Tensor | None = None) -> None:
        self.runs, self.bias = runs(lengths), bias

    def __call__(self, q_NHD: Tensor, k_NHD: Tensor, v_NHD: Tensor) -> Tensor:
        if not self.runs:
            return v_NHD + 0 * (q_NHD + k_NHD)  # no tokens: empty gradients, not missing ones
        sizes = [images * length for images, length in self.runs]
        biases = [None] * len(sizes) if self.bias is None else self.bias.to(q_NHD.dtype).split(sizes)
        parts = zip(*(x.split(sizes) for x in (q_NHD, k_NHD, v_NHD)), biases, self.runs, strict=True)
        return torch.cat([_attend(q, k, v, bias, images) for q, k, v, bias, (images, _) in parts])


def _attend(q_NHD: Tensor, k_NHD: Tensor, v_NHD: Tensor, bias_N: Tensor | None, images: int) -> Tensor:
    q, k, v = (x.unflatten(0, (images, -1)).transpose(1, 2) for x in (q_NHD, k_NHD, v_NHD))
    mask = None if bias_N is None else bias_N.view(images, 1, 1, -1)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(0, 1)


class Flex:
    def __init__(self, lengths: Sequence[int], device: torch.device, bias: Tensor | None = None) -> None:
        self.mask, self.bias = document_mask(lengths, device), bias
        self.attend = _flex(compiled=device.type == "cuda")

    def __call__(self, q_NHD: Tensor, k_NHD: Tensor, v_NHD: Tensor) -> Tensor:
        if q_NHD.device.type == "cpu" and q_NHD.requires_grad:
            raise InputError("run.attention: 'flex' has no backward pass on a CPU; use sdpa_loop")
        q, k, v = (x.transpose(0, 1)[None] for x in (q_NHD, k_NHD, v_NHD))
        bias = self.bias
        add = None if bias is None else lambda score, _b, _h, _q, kv: score + bias[kv]
        mixed: Tensor = self.attend(q, k, v, score_mod=add, block_mask=self.mask)[0]
        return mixed.transpose(0, 1)


@lru_cache
def _flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


def document_mask(lengths: Sequence[int], device: torch.device) -> Any:
    """BlockMask in which a token attends to the tokens of the same image.

    The result of `create_block_mask`, without looking at every pair of tokens: a row of tiles needs the tiles from the
    first token of its first image to the last token of its last image; tiles within one image are full.
    """
    from torch.nn.attention.flex_attention import BlockMask

    counts = np.asarray(lengths, dtype=np.int64)
    total, ends = int(counts.sum()), np.cumsum(counts)
    document = np.repeat(np.arange(len(counts)), counts)
    first = np.arange(0, total, _BLOCK)
    last = np.minimum(first + _BLOCK, total) - 1
    head, tail = document[first], document[last]
    begin, end = (ends - counts)[head] // _BLOCK, (ends[tail] - 1) // _BLOCK
    tile = np.arange(len(first))
    needed = (tile >= begin[:, None]) & (tile <= end[:, None])
    one = head == tail
    whole = (last - first + 1 == _BLOCK) & one
    full = whole[:, None] & whole[None, :] & (head[:, None] == head[None, :])
    owner = torch.from_numpy(document).to(device)
    partial, full_tiles = _indices(needed & ~full, device), _indices(full, device)
    return BlockMask.from_kv_blocks(
        *partial, *full_tiles, _BLOCK, lambda b, h, q, kv: owner[q] == owner[kv], seq_lengths=(total, total)
    )


def _indices(tiles: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Boolean (rows, columns) -> number of tiles set in each row, and the columns, set ones first, (1, 1, …) each."""
    order = np.argsort(~tiles, axis=1, kind="stable")
    count, columns = (torch.from_numpy(x.astype(np.int32))[None, None].to(device) for x in (tiles.sum(1), order))
    return count, columns


class Varlen:
    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        if device.type != "cuda":
            raise InputError(f"run.attention: 'varlen' runs on a GPU only, not on {device}; use sdpa_loop")
        self.starts = torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=torch.int32, device=device)
        self.longest, self.lengths = max(lengths, default=0), list(lengths)
        self.flex: Flex | None = None
        """For float32, built at the first use."""

    def __call__(self, q_NHD: Tensor, k_NHD: Tensor, v_NHD: Tensor) -> Tensor:
        if v_NHD.dtype not in (torch.bfloat16, torch.float16):
            self.flex = self.flex or Flex(self.lengths, v_NHD.device)
            return self.flex(q_NHD, k_NHD, v_NHD)
        from torch.nn.attention.varlen import varlen_attn

        mixed = varlen_attn(q_NHD, k_NHD, v_NHD, self.starts, self.starts, self.longest, self.longest)
        assert isinstance(mixed, Tensor)
        return mixed
