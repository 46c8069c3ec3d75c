"""The global order of an epoch: a pure function of the index and a seed, whoever reads it with how many processes.

1. Shards are ordered by hash(seed, epoch, shard) and dealt to `lanes` in turn.
2. In a lane, each `window_shards` consecutive shards form a window; its samples are ordered by
   hash(seed, key, epoch, shard, row).
3. The global order takes one sample of each lane in turn; a lane that has run out is passed over.

So at most lanes x window_shards tars are in use at any moment, each is read once per epoch, and the shuffle reaches
over all of them. The dataset's tars are shuffled globally when they are written, so a window need not be large.

Where a place of the order lies follows from the shards' counts alone, so only the windows that are asked for are
sorted: memory does not grow with the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import make_key, ranks

Shuffled = Callable[[Sequence[int], int], NDArray[np.int64]]
"""(shards of a window, epoch) -> its samples in their order."""
Kept = TypeVar("Kept")


class LastTwo(Generic[Kept]):
    """Of what has a number: the two that were asked for last are kept, others are made again."""

    def __init__(self, make: Callable[[int], Kept]) -> None:
        self._make, self._kept = make, dict[int, Kept]()

    def __getitem__(self, number: int) -> Kept:
        found = self._kept.pop(number) if number in self._kept else self._make(number)
        self._kept[number] = found
        if len(self._kept) > 2:
            del self._kept[next(iter(self._kept))]
        return found


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
        """Places of a lane at which others run out."""
        self._active = [np.flatnonzero(lengths > level) for level in self._levels[:-1]]
        sizes = [step * len(lanes) for step, lanes in zip(np.diff(self._levels), self._active, strict=True)]
        self._starts = np.cumsum([0, *sizes])
        self._windows = [LastTwo(partial(self._window, lane)) for lane in range(len(self._lanes))]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Samples (n,) at places (n,) of the order."""
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
                found[now] = self._windows[own][number][at[now] - start]
        return found

    def _window(self, lane: int, number: int) -> NDArray[np.int64]:
        """Its samples, sorted."""
        return self._shuffled(self._lanes[lane][number].tolist(), self._epoch)
