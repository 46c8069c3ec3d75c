"""Duplicate sets as arrays: who belongs together, who is kept, and why the others are duplicates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from curate.image.hamming import Edges, components

KEEPER, EXACT, NEAR = 0, 1, 2


class DuplicateSets(NamedTuple):
    """One entry per member of a set of two or more, sorted by key."""

    row: NDArray[np.int64]
    keeper: NDArray[np.int64]
    """Row of the keeper of the member's set; its own for the keeper."""
    kind: NDArray[np.int8]
    """KEEPER, EXACT or NEAR."""


def duplicate_sets(
    keys: NDArray[np.bytes_], pixels: NDArray[np.int64], exact_edges: list[Edges], near_edges: list[Edges]
) -> DuplicateSets:
    """Rows n -> their sets, which are the components of all edges: equal bytes or pixels, and hashes within reach.

    Members rank by pixels (most first), then key (smallest first); the first of a set is its keeper, any other is
    EXACT when it is not the first of those it equals exactly, else NEAR.
    """
    count = len(keys)
    exact = components(count, exact_edges)
    together = components(count, [*exact_edges, *near_edges])
    order = np.lexsort((keys, -pixels))
    keeper = _first(together, order)
    kind = np.where(keeper == np.arange(count), KEEPER, np.where(_first(exact, order) == np.arange(count), NEAR, EXACT))
    members = np.flatnonzero(np.bincount(together, minlength=1)[together] > 1) if count else np.empty(0, np.int64)
    members = members[np.argsort(keys[members], kind="stable")]
    return DuplicateSets(members, keeper[members], kind[members].astype(np.int8))


def _first(labels: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each row's label, the row that comes first in `order`."""
    first = np.empty(labels.max(initial=-1) + 1, dtype=np.int64)
    first[labels[order[::-1]]] = order[::-1]
    return first[labels]
