"""Several heads answer together: the surer a head is of a picture, the more it counts there (AMoE's ensemble)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax, xlogy

Floats = NDArray[np.floating[Any]]


def probabilities(scores_NC: Floats, temperature: float) -> NDArray[np.float64]:
    """Softmax of scores such as cosines."""
    return softmax(scores_NC.astype(np.float64) / temperature, axis=1)


def shares(votes_NC: Floats) -> NDArray[np.float64]:
    """Votes, none below zero, as probabilities; equal ones where there is no vote."""
    total = votes_NC.sum(1, keepdims=True)
    even = np.full(votes_NC.shape, 1 / votes_NC.shape[1])
    return np.divide(votes_NC, total, out=even, where=total > 0)


def entropy(probabilities_NC: Floats) -> NDArray[np.float64]:
    """H (N,) in nats."""
    return -xlogy(probabilities_NC, probabilities_NC).sum(1)


def weights(probabilities_of_heads: Sequence[Floats], gamma: float) -> NDArray[np.float64]:
    """alpha (heads, N), proportional to exp(-gamma H) and adding up to 1 over the heads."""
    return np.exp(log_softmax(-gamma * np.stack([entropy(head) for head in probabilities_of_heads]), axis=0))


def together(probabilities_of_heads: Sequence[Floats], gamma: float) -> NDArray[np.float64]:
    """Weighted mean (N, C) of what the heads say."""
    return np.einsum("hn,hnc->nc", weights(probabilities_of_heads, gamma), np.stack(probabilities_of_heads))
