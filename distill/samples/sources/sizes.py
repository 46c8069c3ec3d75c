"""How many patches a picture has: its size in the index, and the limit that its source sets or that is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distill.samples.batches.draws import SIZE, Draws, choose
from distill.samples.batches.packing import grid, grids
from distill.samples.sources.mixture import Blend


class Sizes:
    """Plans are made of these numbers, so a picture is later fitted into the place that they promise."""

    def __init__(self, blend: Blend, draws: Draws, *, patch: int, limits: Sequence[dict[int, float]]) -> None:
        """limits: of each source, weights by patches of a picture at most."""
        self.patch, self._blend, self._draws = patch, blend, draws
        self._limits = [np.array(list(item), dtype=np.int64) for item in limits]
        self._weights = [list(item.values()) for item in limits]
        self._largest = np.array([item.max() for item in self._limits])
        self._single = np.array([len(item) == 1 for item in self._limits])

    def limit(self, rows: ArrayLike, epochs: ArrayLike | None) -> NDArray[np.int64]:
        """Limits (n,) of rows (n,) in epochs (n,); without epochs, the largest of each row's source."""
        rows = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        source = self._blend.source_of(rows)
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
        """Of one row, in an epoch or at its largest."""
        source = self._blend.place(row)[0]
        if epoch is None or self._single[source]:
            return int(self._largest[source])
        return int(self.limit(row, epoch)[0])

    def tokens(self, rows: ArrayLike, epochs: ArrayLike | None = None) -> NDArray[np.int64]:
        """Patches (n,) planned for rows (n,) in epochs (n,) of their source."""
        rows = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        limits = self.limit(rows, epochs)
        width, height = self._blend.take("width", rows), self._blend.take("height", rows)
        out = np.zeros(len(rows), dtype=np.int64)
        for limit in np.unique(limits).tolist():
            mine = limits == limit
            columns, high = grids(width[mine], height[mine], patch=self.patch, max_tokens=limit)
            out[mine] = columns * high
        return out

    def planned(self, row: int, limit: int) -> int:
        """Patches of one row under one of its source's limits."""
        width, height = self._blend.number("width", row), self._blend.number("height", row)
        columns, rows = grid(width, height, patch=self.patch, max_tokens=limit)
        return columns * rows
