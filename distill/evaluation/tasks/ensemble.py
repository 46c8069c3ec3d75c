"""Ensemble of heads (AMoE, section 4): a weighted sum of the heads' scores; the more certain a head is about an input,
the higher its weight.

Scores are cosines with the classes' texts, shares of the neighbours' votes, or similarities to a gallery.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from curate.core.errors import InputError
from curate.kernels.evenness import entropy

Floats = NDArray[np.floating[Any]]


def shares(votes_NC: Floats) -> NDArray[np.float64]:
    """Votes >= 0 as a distribution over the classes; uniform without any vote."""
    total = votes_NC.sum(1, keepdims=True)
    even = np.full(votes_NC.shape, 1 / votes_NC.shape[1])
    return np.divide(votes_NC, total, out=even, where=total > 0)


def weights(scores_of_heads: Sequence[Floats], temperature: float, gamma: float) -> NDArray[np.float64]:
    """alpha (heads, N), proportional to exp(-gamma H) with the entropy H of softmax(scores / temperature); they add up
    to 1 over the heads."""
    entropies = [entropy(softmax(one.astype(np.float64) / temperature, axis=1)) for one in scores_of_heads]
    return np.exp(log_softmax(-gamma * np.stack(entropies), axis=0))


def fused(scores_of_heads: Sequence[Floats], temperature: float, gamma: float) -> NDArray[np.float64]:
    """The sum over the heads of alpha times scores (N, C). Each head scores the same C classes of the same N inputs.

    Raises InputError if the heads score different numbers of classes.
    """
    classes = [one.shape[1] for one in scores_of_heads]
    if len(set(classes)) > 1:
        raise InputError(
            f"ensemble of heads: they score {', '.join(map(str, classes))} classes, expected the same labels for each; "
            f"score every head on one set of labels"
        )
    alpha = weights(scores_of_heads, temperature, gamma)
    return np.einsum("hn,hnc->nc", alpha, np.stack(scores_of_heads).astype(np.float64))
