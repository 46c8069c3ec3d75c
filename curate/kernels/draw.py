"""A sample of the vectors that a group holds, drawn alike for any number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.group import Group, Part
from curate.kernels.vectors import vectors_of


def drawn(group: Group, count: int, seed: int) -> NDArray[np.float32]:
    """At most `count` rows (m, d), each part's share of them, in part order."""
    have = np.array(group.rows, np.int64)
    total = int(have.sum())
    edges = np.concatenate([[0], np.cumsum(have)]) * min(total, count) // total
    return np.concatenate(list(group.each(_share, edges=edges, seed=seed)))


def _share(part: Part, shared: Mapping[str, Any]) -> NDArray[np.float32]:
    first, stop = (int(edge) for edge in shared["edges"][part.index : part.index + 2])
    rows = np.random.default_rng([shared["seed"], part.index]).choice(part.rows, stop - first, replace=False)
    return vectors_of(part.arrays)[np.sort(rows)]
