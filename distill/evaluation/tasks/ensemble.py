"""Ensemble of heads (AMoE): the more certain a head is about an image, the higher its weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from curate.kernels.evenness import entropy

Floats = NDArray[np.floating[Any]]


def probabilities(scores_NC: Floats, temperature: float) -> NDArray[np.float64]:
    """Softmax of scores such as cosines."""
    return softmax(scores_NC.astype(np.float64) / temperature, axis=1)


def shares(votes_NC: Floats) -> NDArray[np.float64]:
    """Votes >= 0 as probabilities; a uniform distribution without any vote."""
    total = votes_NC.sum(1, keepdims=True)
    even = np.full(votes_NC.shape, 1 / votes_NC.shape[1])
    return np.divide(votes_NC, total, out=even, where=total > 0)


def weights(probabilities_of_heads: Sequence[Floats], gamma: float) -> NDArray[np.float64]:
    """alpha (heads, N), proportional to exp(-gamma H) and adding up to 1 over the heads."""
    return np.exp(log_softmax(-gamma * np.stack([entropy(head) for head in probabilities_of_heads]), axis=0))


def combined(probabilities_of_heads: Sequence[Floats], gamma: float) -> NDArray[np.float64]:
    """Weighted mean (N, C) of the heads' probabilities."""
    return np.einsum("hn,hnc->nc", weights(probabilities_of_heads, gamma), np.stack(probabilities_of_heads))
