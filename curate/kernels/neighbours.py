"""Classification by nearest neighbours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NEIGHBOURS = 5
NEAR = 0.07
"""Two images are near copies if their squared distance is below this share of the mean over all pairs, which does not
depend on the units of an encoder."""
LINKS = 3
"""Nearest others of an image among which its near copies are sought."""


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


def near_copies(vectors_ND: NDArray[np.float32], sets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number (N,) of each row's cluster: rows of one set (N,), and near copies of each other in any number of steps, as
    the photos of a burst. vectors: of unit length; a row without one (NaN) has its set only."""
    import faiss
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows = np.flatnonzero(np.isfinite(vectors_ND).all(axis=1))
    good = vectors_ND[rows]
    squares, places = faiss.knn(good, good, min(LINKS + 1, len(rows))) if len(rows) else np.zeros((2, 0, 0), np.int64)
    mean = 2 * (1 - np.square(good.mean(axis=0, dtype=np.float64)).sum()) if len(rows) else 0.0
    near, link = np.nonzero(squares < NEAR * mean)
    _, first, inverse = np.unique(sets, return_index=True, return_inverse=True)
    edges = np.r_[rows[near], np.arange(len(sets))], np.r_[rows[places[near, link]], first[inverse]]
    graph = coo_array((np.ones(len(edges[0]), np.int8), edges), shape=(len(sets), len(sets)))
    return connected_components(graph, directed=False)[1].astype(np.int64)
