"""Plans the number of patches of each image from the index alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from curate.encoders.student.patches import grid, grids
from distill.samples.batches.draws import SIZE, Draws, choose
from distill.samples.sources.mixture import Mixture

_ENLARGE = 1 << 16
"""Factor that scales any image above its limit, since `grid` never enlarges."""


class PatchCounts:
    """Steps are planned with these numbers, so an image is later resized to fit its planned number of patches."""

    def __init__(self, mixture: Mixture, draws: Draws, *, patch: int, limits: Sequence[dict[int, float]]) -> None:
        """limits: per source, weights by maximum number of patches."""
        self.patch, self._mixture, self._draws = patch, mixture, draws
        self._limits = [np.array(list(item), dtype=np.int64) for item in limits]
        self._weights = [list(item.values()) for item in limits]
        self._largest = np.array([item.max() for item in self._limits])
        self._single = np.array([len(item) == 1 for item in self._limits])

    def limit(self, rows: ArrayLike, epochs: ArrayLike | None) -> NDArray[np.int64]:
        """Limits (n,) of rows (n,) in epochs (n,); without epochs, the largest limit of each row's source."""
        rows = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        source = self._mixture.source_of(rows)
        limits = self._largest[source]
        if epochs is None or self._single.all():
            return limits
        epochs = np.broadcast_to(np.asarray(epochs, dtype=np.int64), rows.shape)
        for number in np.flatnonzero(~self._single):
            mine = np.flatnonzero(source == number)
            ranks = self._draws.ranks(SIZE, rows[mine], epochs[mine])
            limits[mine] = self._limits[number][choose(ranks, self._weights[number])]
        return limits

    def limit_of(self, row: int, epoch: int | None) -> int:
        """Limit of one row in an epoch; without an epoch, the largest limit of its source."""
        source = self._mixture.locate(row)[0]
        if epoch is None or self._single[source]:
            return int(self._largest[source])
        return int(self.limit(row, epoch)[0])

    def tokens(self, rows: ArrayLike, epochs: ArrayLike | None = None) -> NDArray[np.int64]:
        """Patches (n,) planned for rows (n,) in epochs (n,) of their source, over all frames of a clip; without epochs,
        at the largest limits."""
        rows = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        return self.grids(rows, epochs).prod(axis=1) * self._mixture.frames(rows)

    def grids(self, rows: NDArray[np.int64], epochs: ArrayLike | None) -> NDArray[np.int64]:
        """(columns, rows) (n, 2) of patches planned for rows (n,), of each frame."""
        limits = self.limit(rows, epochs)
        width, height = self._mixture.take("width", rows), self._mixture.take("height", rows)
        out = np.zeros((len(rows), 2), dtype=np.int64)
        for limit in np.unique(limits).tolist():
            mine = limits == limit
            out[mine] = np.stack(grids(width[mine], height[mine], patch=self.patch, max_tokens=limit), axis=1)
        return out

    def places(self, rows: NDArray[np.int64], epochs: NDArray[np.int64] | None, prefix: int) -> NDArray[np.int64]:
        """Places (n,) in a sequence: patches, and `prefix` (CLS and registers) for each frame."""
        return self.tokens(rows, epochs) + prefix * self._mixture.frames(rows)

    def planned(self, row: int, limit: int) -> int:
        """Patches of one row, or of each of its frames, under one of its source's limits."""
        width, height = self._mixture.number("width", row), self._mixture.number("height", row)
        columns, rows = grid(width, height, patch=self.patch, max_tokens=limit)
        return columns * rows


def enlarged(width: int, height: int, *, patch: int, tokens: int) -> tuple[int, int]:
    """(columns, rows) of patches of an image that is scaled up or down to at most `tokens` of them."""
    return grid(width * _ENLARGE, height * _ENLARGE, patch=patch, max_tokens=tokens)
