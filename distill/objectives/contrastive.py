"""Pictures against their texts over the whole batch: softmax (CLIP) and sigmoid (SigLIP) losses.

Two samples that say the same (equal text), or that show the same (one duplicate set), are no negatives of each other:
clip-arts share titles. Such pairs are left out of the sums; each sample's own pair is always in.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid, normalize

from distill.recipe import ContrastiveRecipe


def contrastive_loss(
    images_ND: Tensor,
    texts_ND: Tensor,
    logit_scale: Tensor,
    logit_bias: Tensor | None,
    recipe: ContrastiveRecipe,
    groups_NG: Tensor,
) -> Tensor:
    """Mean over the N pairs of the global batch, unweighted; 0 with a gradient for no pair.

    groups: numbers of each sample (its text, its duplicate set); samples that share one in the same column are no
    negatives (see `same`). The scale is bounded after each update (`limit_scale`): a bound in here would leave it
    without a gradient, and so above it for good.
    """
    if not len(images_ND):
        return (images_ND.sum() + texts_ND.sum()) * 0.0 + logit_scale * 0.0
    images, texts = normalize(images_ND, dim=-1), normalize(texts_ND, dim=-1)
    alike = same(groups_NG)
    logits = images @ texts.T * logit_scale.exp()
    if recipe.loss == "sigmoid":
        assert logit_bias is not None
        return sigmoid_loss(logits + logit_bias, alike)
    return softmax_loss(logits, alike, recipe.smoothing)


def softmax_loss(logits_NN: Tensor, alike_NN: Tensor, smoothing: float = 0.0) -> Tensor:
    """Radford et al. 2021, Fig. 3: mean of the cross-entropies of rows and of columns; row i's answer is column i.

    alike: pairs left out. Label smoothing shares its part among the columns that are in (Szegedy et al. 2016, Sec. 7).
    """
    return (_rows(logits_NN, alike_NN, smoothing) + _rows(logits_NN.T, alike_NN.T, smoothing)) / 2


def _rows(logits_NN: Tensor, alike_NN: Tensor, smoothing: float) -> Tensor:
    answer = torch.arange(len(logits_NN), device=logits_NN.device)
    held = logits_NN.masked_fill(alike_NN, float("-inf"))
    right = cross_entropy(held, answer)
    if not smoothing:
        return right
    logs = held.log_softmax(-1).masked_fill(alike_NN, 0.0)
    even = -(logs.sum(-1) / (~alike_NN).sum(-1)).mean()
    return (1 - smoothing) * right + smoothing * even


def sigmoid_loss(logits_NN: Tensor, alike_NN: Tensor) -> Tensor:
    """Zhai et al. 2023, Eq. 1: each pair is a question of its own. A sum over texts, mean over pictures."""
    sign = 2 * torch.eye(len(logits_NN), device=logits_NN.device, dtype=logits_NN.dtype) - 1
    return -logsigmoid(sign * logits_NN).masked_fill(alike_NN, 0.0).sum() / len(logits_NN)


def same(groups_NG: Tensor) -> Tensor:
    """True (N, N) for different samples with an equal number in some column; negative numbers equal nothing."""
    equal = (groups_NG[:, None] == groups_NG[None]) & (groups_NG[:, None] >= 0)
    return equal.any(-1).fill_diagonal_(False)
