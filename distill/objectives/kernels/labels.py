"""Losses of class scores against several labels of each image; no (images, classes) targets are made."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def label_losses(scores_BC: Tensor, labels: Sequence[Sequence[int]], loss: str, smoothing: float = 0.0) -> Tensor:
    """Loss (B,) of each image; 0, with a gradient of 0, for one without labels. labels: different classes.

    softmax: cross-entropy with a target of 1/k for each of the k labels (Singh et al. 2022, SWAG); sigmoid: binary
    cross-entropy, the mean over classes. smoothing: share of the target that is spread over all classes (softmax).
    """
    images, classes, counts = flat(labels, scores_BC.device)
    own = torch.zeros_like(scores_BC[:, 0]).index_add(0, images, scores_BC[images, classes])
    if loss == "sigmoid":
        losses = (-logsigmoid(-scores_BC).sum(1) - own) / scores_BC.shape[1]
    else:
        wanted = (1.0 - smoothing) * own / counts.clamp(min=1).to(own) + smoothing * scores_BC.mean(1)
        losses = scores_BC.logsumexp(1) - wanted
    return torch.where(counts > 0, losses, 0.0 * losses)


def right(scores_BC: Tensor, labels: Sequence[Sequence[int]]) -> Tensor:
    """(B,) 1 for an image whose best class is one of its labels, otherwise 0."""
    images, classes, _ = flat(labels, scores_BC.device)
    hits = (scores_BC.argmax(1)[images] == classes).to(scores_BC)
    return torch.zeros_like(scores_BC[:, 0]).index_add(0, images, hits).detach()


def flat(labels: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(image of each label, its class), (L,) each, and the number of labels of each image (B,)."""
    counts = torch.tensor([len(own) for own in labels], dtype=torch.int64)
    images = torch.repeat_interleave(torch.arange(len(counts)), counts)
    classes = torch.tensor([label for own in labels for label in own], dtype=torch.int64)
    return images.to(device), classes.to(device), counts.to(device)
