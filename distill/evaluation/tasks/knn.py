"""Weighted k-nearest-neighbour classification (Wu et al. 2018, Sec. 3.4), as DINO and AMoE evaluate features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
_CHUNK = 1024


def unit(features_ND: Floats) -> NDArray[np.float32]:
    """Rows of unit length; a zero row stays zero."""
    norm = np.linalg.norm(features_ND, axis=1, keepdims=True)
    return (features_ND / np.maximum(norm, 1e-12)).astype(np.float32)


def knn_votes(
    train_ND: Floats,
    train_labels_N: NDArray[np.int64],
    test_MD: Floats,
    *,
    classes: int,
    k: int,
    temperature: float,
) -> NDArray[np.float64]:
    """Votes (M, classes): each of the k nearest by cosine votes for its label (0..classes-1) by exp(cos / tau).

    Neighbours at equal distance are taken in the order of the training rows.
    """
    train, test = unit(train_ND), unit(test_MD)
    k = min(k, len(train))
    votes = np.zeros((len(test), classes))
    for start in range(0, len(test), _CHUNK):
        similarity = test[start : start + _CHUNK] @ train.T
        nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        weight = np.exp((np.take_along_axis(similarity, nearest, 1).astype(np.float64) - 1.0) / temperature)
        rows = np.repeat(np.arange(start, start + len(similarity)), k)
        np.add.at(votes, (rows, train_labels_N[nearest].ravel()), weight.ravel())
    return votes
