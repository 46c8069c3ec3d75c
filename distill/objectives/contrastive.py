"""Contrastive losses between images and texts over the whole batch: softmax (CLIP) and sigmoid (SigLIP).

Two samples with equal texts (clip-arts share titles) or in the same duplicate set are not negatives of each other. The
sums leave such pairs out; each sample's own pair is always included.
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
    """Unweighted mean over the N pairs of the global batch; without pairs 0, with a gradient.

    groups: numbers of each sample's text and duplicate set; samples with an equal number in a column are not negatives
    (see `same`). The scale is clamped after each update (`limit_scale`): clamped in here, it would have no gradient and
    stay above the limit permanently.
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
    """Mean of the cross-entropies of rows and of columns; the label of row i is column i (Radford et al. 2021, Fig. 3).

    alike: pairs to leave out. Label smoothing is spread over the columns that are left (Szegedy et al. 2016, Sec. 7).
    """
    return (_rows(logits_NN, alike_NN, smoothing) + _rows(logits_NN.T, alike_NN.T, smoothing)) / 2


def _rows(logits_NN: Tensor, alike_NN: Tensor, smoothing: float) -> Tensor:
    labels = torch.arange(len(logits_NN), device=logits_NN.device)
    masked = logits_NN.masked_fill(alike_NN, float("-inf"))
    hard = cross_entropy(masked, labels)
    if not smoothing:
        return hard
    logs = masked.log_softmax(-1).masked_fill(alike_NN, 0.0)
    uniform = -(logs.sum(-1) / (~alike_NN).sum(-1)).mean()
    return (1 - smoothing) * hard + smoothing * uniform


def sigmoid_loss(logits_NN: Tensor, alike_NN: Tensor) -> Tensor:
    """A binary loss per pair, summed over texts, mean over images (Zhai et al. 2023, Eq. 1)."""
    sign = 2 * torch.eye(len(logits_NN), device=logits_NN.device, dtype=logits_NN.dtype) - 1
    return -logsigmoid(sign * logits_NN).masked_fill(alike_NN, 0.0).sum() / len(logits_NN)


def same(groups_NG: Tensor) -> Tensor:
    """Mask (N, N) of different samples with an equal number in some column; negative numbers equal nothing."""
    equal = (groups_NG[:, None] == groups_NG[None]) & (groups_NG[:, None] >= 0)
    return equal.any(-1).fill_diagonal_(False)
