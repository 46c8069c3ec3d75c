"""The samples of one modality in the order in which they are read, packed window by window.

Each source goes through its own epochs in its own order (see `order`), and sources take turns so that after any number
of images each has given its share, to less than one image. Without weights the shares are the sources' samples, so an
epoch holds every sample once. With weights a source may begin its next epoch before another has ended its first; an
epoch of the whole is then as many images as there are samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import digest_bytes, ranks_of_words
from distill.samples.batches.order import EpochOrder, LastTwo
from distill.samples.batches.packing import first_fit_decreasing
from distill.samples.sources.mixture import Blend

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


_BLOCK = 1 << 20


class Track:
    def __init__(
        self,
        blend: Blend,
        read: NDArray[np.bool_],
        *,
        shares: Sequence[float],
        images: int,
        seed: int,
        lengths: Lengths,
        packing: Packing,
    ) -> None:
        """read (n,): the samples to be read, of all modalities; shares: of each source of the blend, adding up to 1, 0
        for those of another modality; images: of an epoch."""
        self.images, self.packing = images, packing
        self._seed, self._lengths, self._shares = seed, lengths, np.asarray(shares, dtype=np.float64)
        self._sources = [
            _Source(blend, number, read) if share else None for number, share in enumerate(self._shares.tolist())
        ]
        self._orders = [None if own is None else LastTwo(partial(self._order, own)) for own in self._sources]

    def start(self) -> Place:
        return Place((0,) * len(self._sources))

    def plan(self) -> dict[str, Any]:
        """What decides the sequences, JSON-able; lengths by those of the first epoch."""
        tokens = (self._lengths(rows, np.zeros(len(rows), dtype=np.int64)) for rows in self._blocks())
        return {
            "rows": digest_bytes(rows.tobytes() for rows in self._blocks()),
            "tokens": digest_bytes(item.astype(np.int64).tobytes() for item in tokens),
            "shares": self._shares.tolist(), "images": self.images, **asdict(self.packing),
        }  # fmt: skip

    def _blocks(self) -> Iterator[NDArray[np.int64]]:
        """All rows, some at a time."""
        return (rows for source in self._sources if source is not None for rows in source.blocks())

    def sequence_images(self) -> float:
        """About how many images a full sequence holds, by a sample of the lengths."""
        rows = np.concatenate([source.some(10_000) for source in self._sources if source is not None])
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
            at = taken[source] + np.arange(len(mine))
            after[source] += len(mine)
            for epoch, places, order in self._epochs(source, at):
                now = mine[places]
                epochs[now], rows[now] = epoch, order.take(at[places] % len(order))
        return rows, epochs, tuple(after)

    def _epochs(self, source: int, at: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], EpochOrder]]:
        """Of images drawn of a source, by how many were before (n,): each epoch, which are of it, and its order."""
        own, orders = self._sources[source], self._orders[source]
        assert own is not None and orders is not None
        epochs = at // own.samples
        for epoch in np.unique(epochs).tolist():
            yield epoch, np.flatnonzero(epochs == epoch), orders[epoch]

    def _order(self, own: _Source, epoch: int) -> EpochOrder:
        cut = {"lanes": self.packing.lanes, "window_shards": self.packing.window_shards}
        return EpochOrder(own.counts, own.shuffled(self._seed), seed=self._seed, epoch=epoch, **cut)


class _Source:
    """The samples of one source that are to be read, by shard."""

    def __init__(self, blend: Blend, number: int, read: NDArray[np.bool_]) -> None:
        """read (n,): of all rows of the blend."""
        self.first, stop = (int(place) for place in blend.starts[number : number + 2])
        self._index, self._read = blend.sources[number].index, read[self.first : stop]
        shards = self._index.numbers("shard")
        limits = np.arange(len(blend.sources[number].tars) + 1, dtype=shards.dtype)
        self._begins = np.searchsorted(shards, limits)
        spans = zip(self._begins[:-1].tolist(), self._begins[1:].tolist(), strict=True)
        self.counts = np.array([np.count_nonzero(self._read[start:stop]) for start, stop in spans])
        """Samples of each shard."""
        self.samples = int(self.counts.sum())

    def shuffled(self, seed: int) -> Callable[[Sequence[int], int], NDArray[np.int64]]:
        """Rows of the blend that lie in some shards, by hash(seed, key, epoch, shard, row)."""

        def shuffle(shards: Sequence[int], epoch: int) -> NDArray[np.int64]:
            spans = [(int(self._begins[shard]), int(self._begins[shard + 1])) for shard in sorted(shards)]
            places = np.concatenate([start + np.flatnonzero(self._read[start:stop]) for start, stop in spans])
            shard, row = (self._index.numbers(name)[places] for name in ("shard", "row"))
            rank = ranks_of_words(seed, self._index.words[places], epoch, shard, row)
            return self.first + places[np.argsort(rank, kind="stable")]

        return shuffle

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Rows of the blend, rising."""
        for start in range(0, len(self._read), _BLOCK):
            yield self.first + start + np.flatnonzero(self._read[start : start + _BLOCK])

    def some(self, count: int) -> NDArray[np.int64]:
        """About so many rows, evenly spread."""
        step, before, found = max(1, self.samples // count), 0, []
        for rows in self.blocks():
            found.append(rows[-before % step :: step])
            before += len(rows)
        return np.concatenate(found)


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
