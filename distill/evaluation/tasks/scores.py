"""From scores of classes to accuracies. A tie goes to the class of the lower number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import InputError

Floats = NDArray[np.floating[Any]]


def ranks_of_truth(scores_MC: Floats, labels_M: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many classes come before the right one (M,): 0 where it is the first."""
    own = np.take_along_axis(scores_MC, labels_M[:, None], 1)
    before = np.arange(scores_MC.shape[1]) < labels_M[:, None]
    return (scores_MC > own).sum(1) + ((scores_MC == own) & before).sum(1)


def accuracies(scores_MC: Floats, labels_M: NDArray[np.int64], top: Sequence[int] = ()) -> dict[str, float]:
    """`accuracy` over pictures, `per_class` (its mean over the classes asked), `topK` for each K below C."""
    rank = ranks_of_truth(scores_MC, labels_M)
    _, place = np.unique(labels_M, return_inverse=True)
    right = np.bincount(place, rank == 0) / np.bincount(place)
    found = {"accuracy": float((rank == 0).mean()), "per_class": float(right.mean())}
    return found | {f"top{k}": float((rank < k).mean()) for k in top if k < scores_MC.shape[1]}


def by_class(scores_MC: Floats, labels_M: NDArray[np.int64], names: Sequence[str]) -> list[dict[str, Any]]:
    """`name`, `pictures`, `right` (share) of each class asked, most right first, then by name; `taken_for` is the class
    that most of its wrong ones were taken for (None where all are right)."""
    said = scores_MC.argmax(1)
    rows: list[dict[str, Any]] = []
    for label in np.unique(labels_M):
        own = said[labels_M == label]
        wrong = np.bincount(own[own != label], minlength=len(names))
        other = names[int(wrong.argmax())] if wrong.any() else None
        right = float((own == label).mean())
        rows.append({"name": names[label], "pictures": len(own), "right": right, "taken_for": other})
    return sorted(rows, key=lambda row: (-row["right"], row["name"]))


def check_finite(what: str, values: Floats) -> None:
    """Raises InputError when some of the values are NaN or infinite; `what` begins the sentence."""
    bad = ~np.isfinite(values).reshape(len(values), -1).all(1) if values.size else np.zeros(0, dtype=bool)
    if bad.any():
        raise InputError(
            f"{what}: {int(bad.sum())} of {len(values)} vectors are not finite (NaN or infinite); "
            f"the weights are broken: look at the losses in metrics.jsonl, or evaluate another checkpoint"
        )
