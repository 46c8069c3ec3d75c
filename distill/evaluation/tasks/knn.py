"""Weighted k-nearest-neighbour classification (Wu et al. 2018, Sec. 3.4), as DINO and AMoE evaluate features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.extraction import Vectors
from distill.evaluation.models import StudentModel, space_name
from distill.evaluation.result import Result, not_computed
from distill.evaluation.tasks import ensemble
from distill.evaluation.tasks.classification import HEADS_TOGETHER, MIN_HEADS, LabelledFeatures

Floats = NDArray[np.floating[Any]]
_CHUNK = 1024


def run(features: LabelledFeatures) -> Result:
    """Accuracies of each model's summaries, of each of a student's heads, and of its heads together if it has several
    (AMoE, Table 1)."""
    if (why := features.why_not_trainable()) is not None:
        return not_computed(why)
    votes: dict[str, Floats] = {}
    for model in features.models:
        votes[model.name] = _votes(features, model.name, Vectors.SUMMARY)
        heads = {}
        if isinstance(model, StudentModel):
            heads = {space_name(model, head): _votes(features, model.name, head) for head in model.heads}
        votes |= heads
        if len(heads) >= MIN_HEADS:
            shares = [ensemble.shares(own) for own in heads.values()]
            settings = features.settings
            votes[f"{model.name}, {HEADS_TOGETHER}"] = ensemble.fused(shares, settings.temperature, settings.gamma)
    return features.result(votes, features.test) | features.baselines()


def _votes(features: LabelledFeatures, model: str, space: str | None) -> Floats:
    return knn_votes(
        features.vectors.stack(model, space, features.train),
        features.labels(features.train),
        features.vectors.stack(model, space, features.test),
        classes=len(features.split.classes),
        k=features.settings.k,
        temperature=features.settings.temperature,
    )


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

    Neighbours at equal distance keep the order of the training rows.
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
