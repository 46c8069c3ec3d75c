"""Variance of the rows of a group, against which the clusters of a tree are measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.group import Group, Part
from curate.kernels.vectors import vectors_of

BLOCK_ROWS = 4096


def variance(group: Group) -> float:
    """Mean squared distance of all rows to their mean, in one pass; 0 without rows.

    Computed as E |x|^2 - |E x|^2 in float64. For directions, the two terms are close only if all rows are nearly equal.
    Parts are added in order, so the result is the same on any engine.
    """
    rows, total, squares = 0, np.zeros(1), 0.0
    for count, part_total, part_squares in group.each(moments):
        rows, total, squares = rows + count, total + part_total, squares + part_squares
    if not rows:
        return 0.0
    mean = total / rows
    return max(0.0, float(squares / rows - mean @ mean))


def moments(part: Part, shared: Mapping[str, Any]) -> tuple[int, NDArray[np.float64], float]:
    """Number of rows, sum of the vectors (d,), and sum of their squared lengths."""
    vectors = vectors_of(part.arrays)
    total, squares = np.zeros(vectors.shape[1]), 0.0
    for start in range(0, len(vectors), BLOCK_ROWS):
        block = vectors[slice(start, start + BLOCK_ROWS)].astype(np.float64)
        total += block.sum(axis=0)
        squares += float(np.einsum("nd,nd->", block, block))
    return len(vectors), total, squares
