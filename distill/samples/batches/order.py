"""The global order of an epoch: a pure function of the index and a seed, for any number of processes.

1. Shards are ordered by hash(seed, epoch, shard) and dealt to `lanes` in turn.
2. In a lane, each `window_shards` consecutive shards form a window; its samples are ordered by
   hash(seed, key, epoch, shard, row).
3. The global order takes one sample of each lane in turn; a lane that has run out is passed over.

So at most lanes x window_shards tars are in use at any moment, each tar is read once per epoch, and samples are
shuffled across all tars in use. The dataset's tars were shuffled globally when they were written, so small windows are
enough.

The window of a position follows from the shards' sample counts alone. Only requested windows are sorted, so memory does
not grow with the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import make_key, ranks

Shuffled = Callable[[Sequence[int], int], NDArray[np.int64]]
"""(shards of a window, epoch) -> the window's samples, shuffled."""


class EpochOrder:
    """`take(places)` of one epoch of one source."""

    def __init__(
        self,
        counts: NDArray[np.int64],
        shuffled: Shuffled,
        *,
        seed: int,
        epoch: int,
        lanes: int,
        window_shards: int,
    ) -> None:
        """counts: samples of each shard."""
        present = np.flatnonzero(counts)
        self._epoch, self._shuffled = epoch, shuffled
        ordered = present[
            np.argsort(ranks(seed, [make_key("shard", str(shard)) for shard in present], epoch), kind="stable")
        ]
        self._lanes = [
            [mine[start : start + window_shards] for start in range(0, len(mine), window_shards)]
            for mine in (ordered[lane::lanes] for lane in range(min(lanes, len(ordered))))
        ]
        """Windows of each lane, as shards."""
        self._ends = [np.cumsum([counts[window].sum() for window in lane]) for lane in self._lanes]
        lengths = np.array([ends[-1] for ends in self._ends])
        self._levels = np.unique([0, *lengths])
        """Positions in a lane at which other lanes run out."""
        self._active = [np.flatnonzero(lengths > level) for level in self._levels[:-1]]
        sizes = [step * len(lanes) for step, lanes in zip(np.diff(self._levels), self._active, strict=True)]
        self._starts = np.cumsum([0, *sizes])
        # two: a run that resumes inside a window needs that window and the next one
        self._windows = [lru_cache(maxsize=2)(partial(self._window, lane)) for lane in range(len(self._lanes))]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Samples (n,) at positions (n,) of the order."""
        lane, at = np.empty(len(places), dtype=np.int64), np.empty(len(places), dtype=np.int64)
        level = np.searchsorted(self._starts, places, side="right") - 1
        for number in np.unique(level).tolist():
            mine, active = level == number, self._active[number]
            beyond = places[mine] - self._starts[number]
            lane[mine], at[mine] = active[beyond % len(active)], self._levels[number] + beyond // len(active)
        found = np.empty(len(places), dtype=np.int64)
        for own in np.unique(lane).tolist():
            mine = np.flatnonzero(lane == own)
            window = np.searchsorted(self._ends[own], at[mine], side="right")
            for number in np.unique(window).tolist():
                now = mine[window == number]
                start = int(self._ends[own][number - 1]) if number else 0
                found[now] = self._windows[own](number)[at[now] - start]
        return found

    def place(self, shard: int, sample: int) -> int:
        """The position of a sample of a shard: the inverse of `take`."""
        lane, number = next(
            (lane, number)
            for lane, windows in enumerate(self._lanes)
            for number, window in enumerate(windows)
            if shard in window
        )
        inside = int(np.flatnonzero(self._windows[lane](number) == sample)[0])
        at = inside + (int(self._ends[lane][number - 1]) if number else 0)
        level = int(np.searchsorted(self._levels, at, side="right")) - 1
        active = self._active[level]
        turn = int(np.searchsorted(active, lane))
        return int(self._starts[level] + (at - self._levels[level]) * len(active) + turn)

    def _window(self, lane: int, number: int) -> NDArray[np.int64]:
        """Samples of one window of a lane, shuffled."""
        return self._shuffled(self._lanes[lane][number].tolist(), self._epoch)
