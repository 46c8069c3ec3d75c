"""Contrastive losses between images and texts over the whole batch: softmax (CLIP) and sigmoid (SigLIP).

An image and the text of another sample are not negatives if the image's sample has an equal text (clip-arts share
titles), or if both are in the same duplicate set. The sums leave such pairs out; each sample's own pair is always
included. With several texts per image, the loss is the mean of the losses of the first texts, of the second texts, …:
two texts of one image are never compared with each other (Xray's siamese loss, section 4.7.1, 1:1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid, normalize

if TYPE_CHECKING:
    from distill.objectives.contrastive import Contrastive


def contrastive_loss(
    images_ND: Tensor,
    texts: Tensor,
    logit_scale: Tensor,
    logit_bias: Tensor | None,
    recipe: Contrastive,
    groups_NG: Tensor,
) -> Tensor:
    """Unweighted mean over the N pairs of the global batch; without pairs 0, with a gradient.

    texts: (N, D), or (N, T, D) with T texts per image; groups: numbers of each sample's texts and of its duplicate set,
    which decide what is not a negative (see `same`). The scale is clamped after each update (`limit_scale`): clamped in
    here, it would have no gradient and stay above the limit permanently.
    """
    if not len(images_ND):
        return (images_ND.sum() + texts.sum()) * 0.0 + logit_scale * 0.0
    sides = texts.unbind(1) if texts.ndim == 3 else [texts]
    images, losses = normalize(images_ND, dim=-1), []
    for number, texts_ND in enumerate(sides):
        alike = same(groups_NG, number)
        logits = images @ normalize(texts_ND, dim=-1).T * logit_scale.exp()
        if recipe.loss == "sigmoid":
            assert logit_bias is not None
            losses.append(sigmoid_loss(logits + logit_bias, alike))
        else:
            losses.append(softmax_loss(logits, alike, recipe.smoothing))
    return losses[0] if len(losses) == 1 else torch.stack(losses).mean()


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


def simclr_loss(first_ND: Tensor, second_ND: Tensor, temperature: float) -> Tensor:
    """NT-Xent: the mean cross-entropy of each view with the other view of its image as label among all other views
    (Chen et al. 2020, Eq. 1). Without images 0, with a gradient."""
    count = len(first_ND)
    if not count:
        return (first_ND.sum() + second_ND.sum()) * 0.0
    views = normalize(torch.cat([first_ND, second_ND]), dim=-1)
    itself = torch.eye(2 * count, dtype=torch.bool, device=views.device)
    logits = (views @ views.T / temperature).masked_fill(itself, float("-inf"))
    return cross_entropy(logits, torch.arange(2 * count, device=views.device).roll(count))


def same(groups_NG: Tensor, side: int = 0) -> Tensor:
    """Mask (N, N) of the pairs of image i and text `side` of another sample j that are not negatives: sample i has the
    same text, or the same duplicate set.

    groups: a column for each text of a sample, and a last one for its duplicate set; negative numbers equal nothing.
    """
    *texts, sets = groups_NG.unbind(1)
    alike = _equal(sets, sets)
    for own in texts:
        alike |= _equal(own, texts[side])
    return alike.fill_diagonal_(False)


def _equal(a_N: Tensor, b_N: Tensor) -> Tensor:
    return (a_N[:, None] == b_N) & (a_N[:, None] >= 0)
