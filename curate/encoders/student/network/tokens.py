"""The tokens of packed images, and layers that leave fewer of them: EViT keeps those that CLS attends to, ToMe merges
those that are alike.

Both act between the attention and the MLP of a block, on the patches of each image alone. The tokens that they leave
are weighted sums of those before. CLS and registers always stay.

Sources: EViT, Liang et al. 2022, section 3; ToMe, Bolya et al. 2023, section 3. Their models have absolute positions
only; with rotary ones, a sum of tokens is at the mean of their positions, with the weights of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from curate.encoders.student.network.rope import Grid
from curate.encoders.student.reduction import Reduction


class Layout:
    """Positions of prefixes (CLS and registers) and patches among the tokens of all images.

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


def chosen(patches: Sequence[int], places: Sequence[NDArray[np.int64]]) -> Tensor:
    """Indices of the patches at `places` of each image among those of all images, which have `patches` each."""
    starts = np.cumsum([0, *patches])[:-1]
    pieces = [start + own for start, own in zip(starts, places, strict=True)]
    return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *pieces]))


def tubes(
    patches_NP: Tensor, grids: Sequence[Grid], frames: Sequence[int], size: int
) -> tuple[Tensor, list[Grid], list[int]]:
    """Patches of frames -> of `size` frames each (M, size * P), the grid of each clip, and its number of steps in time.

    The last frame of a clip is repeated to fill its last step. The tokens of a clip are in order of time.
    """
    index, clips, steps, first = [np.zeros((0, size), np.int64)], list[Grid](), list[int](), 0
    for start, count in zip(np.cumsum([0, *frames])[:-1], frames, strict=True):
        rows, columns = grids[start]
        frame = np.minimum(np.arange(-(-count // size) * size), count - 1).reshape(-1, 1, size)
        index.append((first + frame * rows * columns + np.arange(rows * columns)[:, None]).reshape(-1, size))
        clips.append((rows, columns))
        steps.append(len(frame))
        first += count * rows * columns
    return patches_NP[torch.from_numpy(np.concatenate(index)).to(patches_NP.device)].flatten(1), clips, steps


def time_vectors(grids: Sequence[Grid], steps: Sequence[int], width: int) -> Tensor:
    """(M, width): sines and cosines of each token's step in time (Vaswani et al. 2017, section 3.5), 0 at the first
    step, so that an image has none."""
    times = [np.repeat(np.arange(count), rows * columns) for (rows, columns), count in zip(grids, steps, strict=True)]
    at = torch.from_numpy(np.concatenate([np.zeros(0), *times]))
    angle = at[:, None] * 1e4 ** -(torch.arange(width // 2, dtype=torch.float64) / (width // 2))
    return torch.cat([angle.sin(), angle.cos() - 1.0, torch.zeros(len(at), width % 2, dtype=torch.float64)], dim=1)


@dataclass(frozen=True)
class TokenSet:
    """Which tokens of packed images a layer has."""

    patches: list[int]
    """Number of each image's tokens, without its prefix."""
    prefix: int
    positions: Tensor
    """(N, 2), as of `rope.positions`."""
    sizes: Tensor | None = None
    """(N,): patches that each token stands for; None: 1."""
    stayed: Tensor | None = None
    """(N,): the tokens of the layer before that these are, or None if all positions are new."""
    moved: Tensor | None = None
    """Those of them, some twice, whose positions are new."""

    @property
    def lengths(self) -> list[int]:
        return [count + self.prefix for count in self.patches]

    @property
    def bias(self) -> Tensor | None:
        """(N,), added to the attention's scores of each token as a key, so that it counts as its patches together
        (ToMe, Eq. 1)."""
        return None if self.sizes is None else self.sizes.log()


_COSINES = 1 << 16
"""Levels from 0 to 1 that similarities are rounded to, so that equal ones are equal in any pack; the first wins."""

Reduce = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, TokenSet]]
"""(tokens after attention (N, C), queries and keys (N, heads, D)) -> the tokens that are left, and which they are."""


def reducer(reduction: Reduction, layer: int, tokens: TokenSet) -> Reduce | None:
    """What a layer, counted from 1, does to these tokens; None if all of them stay."""
    left = [reduction.after(layer, count) for count in tokens.patches]
    if reduction.keeps(layer):
        kept = [reduction.kept(count) for count in tokens.patches]
        return None if kept == tokens.patches else partial(keep_attended, tokens=tokens, kept=kept, left=left)
    return None if left == tokens.patches else partial(merge_alike, tokens=tokens, left=left)


def keep_attended(
    x_NC: Tensor, q_NHD: Tensor, k_NHD: Tensor, *, tokens: TokenSet, kept: list[int], left: list[int]
) -> tuple[Tensor, TokenSet]:
    """EViT: the `kept` patches of each image to which its CLS attends most, in order, and as the last token the
    sum of the others, each times its attention. The attention is the mean over heads."""
    rows, prefix = _Rows(tokens.lengths, x_NC.device), tokens.prefix
    attention_IL = _cls_attention(q_NHD, k_NHD, tokens, rows)
    order_IL = attention_IL.detach().masked_fill(rows.absent, -1.0)
    order_IL[:, :prefix] = 2.0
    stays_IL = _ranks(order_IL) < rows.column(kept) + prefix
    starts, length = rows.starts(left, prefix), rows.column(left) + prefix
    target = rows.pack(starts + torch.where(stays_IL, stays_IL.cumsum(1), length) - 1)
    stays, count = rows.pack(stays_IL), sum(left) + prefix * len(left)
    weight = torch.where(stays, 1.0, rows.pack(attention_IL))
    share = weight.detach()
    total = _sums(share, target, count).clamp(min=torch.finfo(share.dtype).tiny)  # an attention may round to 0
    share = share / total[target]
    sizes = None if tokens.sizes is None else _sums(tokens.sizes * stays, target, count).clamp(min=1.0)
    positions = _sums(tokens.positions * share.to(tokens.positions)[:, None], target, count)
    x_NC = _sums(x_NC * weight.to(x_NC.dtype)[:, None], target, count)
    return x_NC, TokenSet(left, prefix, positions, sizes)


def _cls_attention(q_NHD: Tensor, k_NHD: Tensor, tokens: TokenSet, rows: _Rows) -> Tensor:
    """(images, longest): how much CLS attends to each token, the mean over heads."""
    wide = torch.promote_types(q_NHD.dtype, torch.float32)
    cls_NHD = q_NHD[rows.first].to(wide)[rows.image]
    scores_NH = (cls_NHD * k_NHD.to(wide)).sum(-1) * q_NHD.shape[-1] ** -0.5
    if tokens.bias is not None:
        scores_NH = scores_NH + tokens.bias.to(wide)[:, None]
    return rows.pad(scores_NH).masked_fill(rows.absent[..., None], float("-inf")).softmax(1).mean(-1)


def merge_alike(
    x_NC: Tensor, q_NHD: Tensor, k_NHD: Tensor, *, tokens: TokenSet, left: list[int]
) -> tuple[Tensor, TokenSet]:
    """ToMe: every other patch of an image is matched with the most similar of the rest, by the cosine of their keys'
    means over heads; the most similar pairs, as many as leave `left`, become means weighted by size."""
    rows, prefix = _Rows(tokens.lengths, x_NC.device), tokens.prefix
    keys_NHD = k_NHD.detach().to(torch.promote_types(k_NHD.dtype, torch.float32))
    metric_ILD = rows.pad(normalize(keys_NHD.mean(1), dim=-1))
    a, b = slice(prefix, None, 2), slice(prefix + 1, None, 2)
    alike_IAB = (metric_ILD[:, a] @ metric_ILD[:, b].mT).mul(_COSINES).round()
    best_IA, match_IA = alike_IAB.masked_fill(rows.absent[:, None, b], float("-inf")).max(-1)
    ranks_IA = _ranks(best_IA.masked_fill(rows.absent[:, a], float("-inf")))
    goes_IL = torch.zeros_like(rows.absent)
    goes_IL[:, a] = ranks_IA < rows.column(tokens.patches) - rows.column(left)
    place_IL = rows.starts(left, prefix) + (~goes_IL).cumsum(1) - 1
    place_IL[:, a] = place_IL[:, a].where(~goes_IL[:, a], place_IL.gather(1, prefix + 1 + 2 * match_IA))
    order = rows.pack(goes_IL).argsort(stable=True)
    stay, gone = order.tensor_split([sum(left) + prefix * len(left)])
    target = rows.pack(place_IL)[gone]
    sizes = x_NC.new_ones(len(x_NC), dtype=tokens.positions.dtype) if tokens.sizes is None else tokens.sizes
    total = sizes[stay].index_add(0, target, sizes[gone])
    share = (sizes[gone] / total[target])[:, None]

    def merged(values_NC: Tensor) -> Tensor:
        kept = values_NC.index_select(0, stay)
        return kept.index_add(0, target, (values_NC[gone] - kept[target]) * share.to(kept.dtype))

    return merged(x_NC), TokenSet(left, prefix, merged(tokens.positions), total, stay, target)


class _Rows:
    """Tokens of packed images as rows (images, longest), padded."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        counts, self.device = np.asarray(lengths, dtype=np.int64), device
        starts, place = np.cumsum(counts) - counts, np.arange(counts.max(initial=0))
        present = place < counts[:, None]
        self._index = torch.from_numpy(np.where(present, starts[:, None] + place, 0)).to(device)
        self._slots = torch.from_numpy(np.flatnonzero(present)).to(device)
        self.absent = torch.from_numpy(~present).to(device)
        """(images, longest): places beyond the end of an image."""
        self.first = torch.from_numpy(starts).to(device)
        """(images,): the first token of each."""
        self.image = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(device)
        """(N,): the image of each token."""

    def pad(self, values_N: Tensor) -> Tensor:
        """(N, …) -> (images, longest, …), with some token's value at places that are absent."""
        return values_N[self._index]

    def pack(self, values_IL: Tensor) -> Tensor:
        """(images, longest) -> (N,)."""
        return values_IL.flatten().index_select(0, self._slots)

    def column(self, values: Sequence[int]) -> Tensor:
        """(images, 1)."""
        return torch.tensor(values, dtype=torch.int64, device=self.device)[:, None]

    def starts(self, patches: Sequence[int], prefix: int) -> Tensor:
        """(images, 1): the first token of each image if it has `patches` and its prefix."""
        lengths = np.asarray(patches, dtype=np.int64) + prefix
        return torch.from_numpy(np.cumsum(lengths) - lengths).to(self.device)[:, None]


def _ranks(values_IL: Tensor) -> Tensor:
    """Rank of each value in its row, 0 for the largest, and for the first of equal ones."""
    return values_IL.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


def _sums(values_N: Tensor, target_N: Tensor, count: int) -> Tensor:
    """(count, …): sums of the values whose target is each place."""
    return values_N.new_zeros(count, *values_N.shape[1:]).index_add(0, target_N, values_N)


def means(values_N: Tensor, lengths: Sequence[int]) -> Tensor:
    """Means per image (images, …) of the packed tokens' values (N, …). lengths: tokens of each image, N in total."""
    counts = torch.tensor(lengths, dtype=torch.int64, device=values_N.device)
    image = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts, output_size=len(values_N))
    sums = values_N.new_zeros(len(counts), *values_N.shape[1:]).index_add(0, image, values_N)
    return sums / counts.to(values_N).view(-1, *[1] * (values_N.ndim - 1))
