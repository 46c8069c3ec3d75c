"""The samples of one modality in the order in which they are read, packed window by window.

Each source goes through its own epochs in its own order (see `order`), and sources take turns so that after any number
of images each has given its share, to less than one image. Without weights the shares are the sources' samples, so an
epoch holds every sample once. With weights a source may begin its next epoch before another has ended its first; an
epoch of the whole is then as many images as there are samples.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import digest_bytes
from distill.data.blend import Blend
from distill.data.order import epoch_order
from distill.data.packing import first_fit_decreasing

Lengths = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]
"""(rows (n,), epochs of their sources (n,)) -> tokens (n,)."""


@dataclass(frozen=True)
class Packing:
    capacity: int = 1
    """Tokens of a sequence."""
    images: int = 1
    """Images of a sequence at most. The default (one image of one token) reads samples without packing."""
    lookahead: int = 512
    """Images of a window."""
    lanes: int = 8
    window_shards: int = 4


@dataclass(frozen=True)
class Place:
    """The next sequence of a track."""

    taken: tuple[int, ...]
    """Images drawn of each source before this window, over all epochs."""
    sequence: int = 0
    """Within the window."""


@dataclass(frozen=True)
class Packed:
    """One sequence."""

    rows: NDArray[np.int64]
    epochs: NDArray[np.int64]
    after: Place


class Track:
    def __init__(
        self,
        blend: Blend,
        rows: NDArray[np.int64],
        *,
        shares: Sequence[float],
        images: int,
        seed: int,
        lengths: Lengths,
        packing: Packing,
    ) -> None:
        """rows: of the modality's samples; shares: of each source of the blend, adding up to 1; images: of an epoch."""
        self.images, self.packing = images, packing
        self._seed, self._lengths, self._shares = seed, lengths, np.asarray(shares, dtype=np.float64)
        source = blend.source[rows]
        self._rows = [rows[source == number] for number in range(len(blend.sources))]
        self._words, self._places = blend.words, blend.integers("row")
        self._shards = np.concatenate([item.integers("shard") for item in blend.sources])
        self._orders: OrderedDict[tuple[int, int], NDArray[np.int64]] = OrderedDict()

    def start(self) -> Place:
        return Place((0,) * len(self._rows))

    def plan(self) -> dict[str, Any]:
        """What decides the sequences, JSON-able; lengths by those of the first epoch."""
        rows = np.concatenate(self._rows)
        tokens = self._lengths(rows, np.zeros(len(rows), dtype=np.int64))
        return {
            "rows": digest_bytes([rows.tobytes()]), "tokens": digest_bytes([tokens.astype(np.int64).tobytes()]),
            "shares": self._shares.tolist(), "images": self.images, **asdict(self.packing),
        }  # fmt: skip

    def sequence_images(self) -> float:
        """About how many images a full sequence holds, by a sample of the lengths."""
        rows = np.concatenate([part[:: max(1, len(part) // 10_000)] for part in self._rows])
        mean = float(self._lengths(rows, np.zeros(len(rows), dtype=np.int64)).mean())
        return max(1.0, min(self.packing.images, self.packing.capacity / mean))

    def epoch(self, place: Place) -> int:
        return sum(place.taken) // self.images

    def left(self, place: Place) -> int:
        """Images that the epoch has left."""
        before = self._window(place.taken)[: place.sequence] if place.sequence else []
        return self._from_window(place.taken) - sum(len(item.rows) for item in before)

    def _from_window(self, taken: Sequence[int]) -> int:
        return self.images - sum(taken) % self.images

    def packed(self, start: Place) -> Iterator[Packed]:
        """Sequences of the rest of an epoch."""
        taken, skip, left = start.taken, start.sequence, self._from_window(start.taken)
        while left:
            window = self._window(taken)
            yield from window[skip:]
            taken, skip, left = window[-1].after.taken, 0, left - min(left, self.packing.lookahead)

    def _window(self, taken: tuple[int, ...]) -> list[Packed]:
        """The sequences of the window that begins when so many images have been drawn."""
        rows, epochs, after = self._images(taken, min(self._from_window(taken), self.packing.lookahead))
        tokens = self._lengths(rows, epochs).tolist()
        bins = first_fit_decreasing(tokens, self.packing.capacity, self.packing.images)
        places = [Place(taken, number) for number in range(1, len(bins))] + [Place(after)]
        return [Packed(rows[bin], epochs[bin], place) for bin, place in zip(bins, places, strict=True)]

    def _images(
        self, taken: tuple[int, ...], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, ...]]:
        """(rows (count,), epochs (count,), taken afterwards)."""
        turn = turns(self._shares, taken, count)
        rows, epochs = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        after = list(taken)
        for source in np.unique(turn).tolist():
            mine = np.flatnonzero(turn == source)
            have = self._rows[source]
            at = taken[source] + np.arange(len(mine))
            after[source] += len(mine)
            epochs[mine] = at // len(have)
            for epoch in np.unique(epochs[mine]).tolist():
                now = mine[epochs[mine] == epoch]
                rows[now] = have[self._order(source, epoch)[at[epochs[mine] == epoch] % len(have)]]
        return rows, epochs, tuple(after)

    def _order(self, source: int, epoch: int) -> NDArray[np.int64]:
        """Order of a source's epoch, as places in its rows; the last two of each source are kept."""
        order = self._orders.get((source, epoch))
        if order is None:
            rows = self._rows[source]
            cut = {"lanes": self.packing.lanes, "window_shards": self.packing.window_shards}
            where = self._words[rows], self._shards[rows], self._places[rows]
            order = epoch_order(*where, seed=self._seed, epoch=epoch, **cut)
            self._orders[source, epoch] = order
            while len(self._orders) > 2 * len(self._rows):
                self._orders.popitem(last=False)
        return order


def turns(shares: NDArray[np.float64], taken: Sequence[int], count: int) -> NDArray[np.int64]:
    """Whose turn it is (count,), after each source has had `taken` turns.

    Tijdeman's chairman assignment (Discrete Mathematics 32, 1980): after t turns, a source of share w has had w * t of
    them, to 1 - 1 / (2k - 2) for k sources. Of the sources that are far enough behind, the one goes first that would
    soonest be too far behind.
    """
    sources = np.flatnonzero(shares).tolist()
    if len(sources) == 1:
        return np.full(count, sources[0], dtype=np.int64)
    slack = 1 / (2 * len(sources) - 2)
    had, weight = list(taken), shares.tolist()
    total, turn = sum(had), np.empty(count, dtype=np.int64)
    for place in range(count):
        total += 1
        ahead = [(source, weight[source] * total - had[source]) for source in sources]
        ready = [item for item in ahead if item[1] >= slack - _ROUNDING]
        chosen = min(ready, key=lambda item: ((1 - slack - item[1]) / weight[item[0]], item[0]))[0]
        had[chosen] += 1
        turn[place] = chosen
    return turn


_ROUNDING = 1e-9
