"""Classification by nearest neighbours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NEIGHBOURS = 5


def knn_right(
    vectors_ND: NDArray[np.float32],
    label_N: NDArray[np.int64],
    references: NDArray[np.int64],
    tests: NDArray[np.int64],
    neighbours: int = NEIGHBOURS,
) -> NDArray[np.float64]:
    """1 for each test row (T,) whose label most of its nearest references (R,) have, else 0. The nearest decides a tie;
    a row never counts for itself. vectors: of unit length, one per row."""
    import faiss

    most = min(neighbours + 1, len(references))
    found = references[faiss.knn(vectors_ND[tests], vectors_ND[references], most)[1]]
    others_first = np.argsort(found == tests[:, None], axis=1, kind="stable")
    nearest = np.take_along_axis(found, others_first, axis=1)[:, :neighbours]
    votes = np.where(nearest == tests[:, None], -1, label_N[nearest])
    winner = (votes[:, :, None] == votes[:, None, :]).sum(axis=2).argmax(axis=1)
    return (votes[np.arange(len(tests)), winner] == label_N[tests]).astype(np.float64)
