"""How many patches a picture has: its size in the index, and the limit that its source sets or that is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distill.data.blend import Blend
from distill.data.draws import SIZE, Draws, choose
from distill.data.packing import grids


class Sizes:
    """Plans are made of these numbers, so a picture is later fitted into the place that they promise."""

    def __init__(self, blend: Blend, draws: Draws, *, patch: int, limits: Sequence[dict[int, float]]) -> None:
        """limits: of each source, weights by patches of a picture at most."""
        self.patch, self._source, self._draws = patch, blend.source, draws
        self._limits = [np.array(list(item), dtype=np.int64) for item in limits]
        self._weights = [list(item.values()) for item in limits]
        self._largest = np.array([item.max() for item in self._limits])
        self._single = np.array([len(item) == 1 for item in self._limits])
        width, height = blend.integers("width"), blend.integers("height")
        self._tokens = {}
        for limit in sorted({limit for item in limits for limit in item}):
            columns, rows = grids(width, height, patch=patch, max_tokens=limit)
            self._tokens[limit] = (columns * rows).astype(np.int32)

    def limit(self, rows: ArrayLike, epochs: ArrayLike | None) -> NDArray[np.int64]:
        """Limits (n,) of rows (n,) in epochs (n,); without epochs, the largest of each row's source."""
        rows = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        source = self._source[rows]
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
        if epoch is None or self._single[self._source[row]]:
            return int(self._largest[self._source[row]])
        return int(self.limit(row, epoch)[0])

    def tokens(self, rows: ArrayLike, epochs: ArrayLike | None = None) -> NDArray[np.int64]:
        """Patches (n,) planned for rows (n,) in epochs (n,) of their source."""
        rows = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        limits = self.limit(rows, epochs)
        out = np.zeros(len(rows), dtype=np.int64)
        for limit in np.unique(limits):
            mine = limits == limit
            out[mine] = self._tokens[int(limit)][rows[mine]]
        return out

    def planned(self, row: int, limit: int) -> int:
        """Patches of one row under one of its source's limits."""
        return int(self._tokens[limit][row])
