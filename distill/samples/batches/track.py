"""The samples of one modality in reading order, packed window by window.

Each source has its own epochs and its own order (see `order`). Sources take turns so that, after any number of images,
each has contributed its share to within one image. Without weights the shares are proportional to the sources' sample
counts, so an epoch contains every sample once. With weights a source may start its second epoch before another has
finished its first; an epoch of the mixture then has as many images as the mixture has samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import digest_bytes, ranks_of_words
from distill.samples.batches.order import EpochOrder
from distill.samples.batches.packing import first_fit_decreasing
from distill.samples.sources.mixture import Mixture

Lengths = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]
"""(rows (n,), epochs of their sources (n,)) -> tokens (n,)."""
Read = Callable[[NDArray[np.int64]], NDArray[np.bool_]]
"""Rows (n,) of the mixture -> which of them are read (n,)."""


@dataclass(frozen=True)
class Packing:
    capacity: int = 1
    """Tokens per sequence."""
    images: int = 1
    """Maximum images per sequence. The default (one image of one token) reads samples without packing."""
    lookahead: int = 512
    """Images per window."""
    lanes: int = 8
    window_shards: int = 4


@dataclass(frozen=True)
class TrackPosition:
    """The next sequence of a track."""

    taken: tuple[int, ...]
    """Images taken from each source before this window, over all epochs."""
    sequence: int = 0
    """Index within the window."""


@dataclass(frozen=True)
class PackedSequence:
    """Rows packed into one sequence, with the epoch of each."""

    rows: NDArray[np.int64]
    epochs: NDArray[np.int64]
    after: TrackPosition


_BLOCK = 1 << 20


class Track:
    def __init__(
        self,
        sources: Sequence[Source],
        *,
        shares: Sequence[float],
        images: int,
        seed: int,
        lengths: Lengths,
        packing: Packing,
        sequence_images: float | None = None,
    ) -> None:
        """sources: of the mixture; shares: of each, with sum 1, and 0 for sources of another modality; images: per
        epoch; sequence_images: as `sequence_images` has once estimated it."""
        self.images, self.packing, self._sequence_images = images, packing, sequence_images
        self._seed, self._lengths, self._shares = seed, lengths, np.asarray(shares, dtype=np.float64)
        self._sources = [own if share else None for own, share in zip(sources, self._shares.tolist(), strict=True)]
        # two: at the end of an epoch, positions of both epochs are requested
        self._orders = [
            None if own is None else lru_cache(maxsize=2)(partial(self._order, own)) for own in self._sources
        ]

    def start(self) -> TrackPosition:
        return TrackPosition((0,) * len(self._sources))

    def plan(self) -> dict[str, Any]:
        """Everything that determines the sequences, JSON-able; with the lengths of the first epoch."""
        tokens = (self._lengths(rows, np.zeros(len(rows), dtype=np.int64)) for rows in self._blocks())
        return {
            "rows": digest_bytes(rows.tobytes() for rows in self._blocks()),
            "tokens": digest_bytes(item.astype(np.int64).tobytes() for item in tokens),
            "shares": self._shares.tolist(), "images": self.images, **asdict(self.packing),
        }  # fmt: skip

    def _blocks(self) -> Iterator[NDArray[np.int64]]:
        """All rows, block by block."""
        return (rows for source in self._sources if source is not None for rows in source.blocks())

    def sequence_images(self) -> float:
        """Estimated images of a full sequence, from a sample of the lengths."""
        if self._sequence_images is not None:
            return self._sequence_images
        rows = np.concatenate([source.spread(10_000) for source in self._sources if source is not None])
        mean = float(self._lengths(rows, np.zeros(len(rows), dtype=np.int64)).mean())
        return max(1.0, min(self.packing.images, self.packing.capacity / mean))

    def epoch(self, place: TrackPosition) -> int:
        return sum(place.taken) // self.images

    def left(self, place: TrackPosition) -> int:
        """Images left in the epoch."""
        before = self._window(place.taken)[: place.sequence] if place.sequence else []
        return self._from_window(place.taken) - sum(len(item.rows) for item in before)

    def _from_window(self, taken: Sequence[int]) -> int:
        return self.images - sum(taken) % self.images

    def packed(self, start: TrackPosition) -> Iterator[PackedSequence]:
        """Remaining sequences of an epoch."""
        taken, skip, left = start.taken, start.sequence, self._from_window(start.taken)
        while left:
            window = self._window(taken)
            yield from window[skip:]
            taken, skip, left = window[-1].after.taken, 0, left - min(left, self.packing.lookahead)

    def _window(self, taken: tuple[int, ...]) -> list[PackedSequence]:
        """Sequences of the window that begins after `taken` images of each source."""
        rows, epochs, after = self._images(taken, min(self._from_window(taken), self.packing.lookahead))
        tokens = self._lengths(rows, epochs).tolist()
        bins = first_fit_decreasing(tokens, self.packing.capacity, self.packing.images)
        places = [TrackPosition(taken, number) for number in range(1, len(bins))] + [TrackPosition(after)]
        return [PackedSequence(rows[bin], epochs[bin], place) for bin, place in zip(bins, places, strict=True)]

    def _images(
        self, taken: tuple[int, ...], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, ...]]:
        """(rows (count,), epochs (count,), `taken` after them)."""
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
        """Split images of a source by epoch: (epoch, indices into `at`, order of the epoch); at (n,): images before."""
        own, orders = self._sources[source], self._orders[source]
        assert own is not None and orders is not None
        epochs = at // own.samples
        for epoch in np.unique(epochs).tolist():
            yield epoch, np.flatnonzero(epochs == epoch), orders(epoch)

    def images_before(self, source: int, shard: int, row: int, epoch: int) -> int:
        """Images that a source gives before a sample in an epoch of the source. shard: of the source."""
        own, orders = self._sources[source], self._orders[source]
        assert own is not None and orders is not None
        return epoch * own.samples + orders(epoch).place(shard, row)

    def _order(self, own: Source, epoch: int) -> EpochOrder:
        return EpochOrder(
            own.counts, own.shuffled(self._seed), seed=self._seed, epoch=epoch, lanes=self.packing.lanes,
            window_shards=self.packing.window_shards,
        )  # fmt: skip


class Source:
    """Samples to read from one source of a mixture, by shard."""

    def __init__(self, mixture: Mixture, number: int, read: Read, counts: Sequence[int] | None = None) -> None:
        """counts: samples per shard; None: counted, which reads all rows."""
        self.first, self._stop = (int(place) for place in mixture.starts[number : number + 2])
        self._index, self._read = mixture.sources[number].index, read
        shards = self._index.numbers("shard")
        limits = np.arange(len(mixture.sources[number].tars) + 1, dtype=shards.dtype)
        self._begins = np.searchsorted(shards, limits)
        if counts is None:
            spans = zip(self._begins[:-1].tolist(), self._begins[1:].tolist(), strict=True)
            counts = [len(self._among(self.first + start, self.first + stop)) for start, stop in spans]
        self.counts = np.array(counts, dtype=np.int64)
        """Samples per shard."""
        self.samples = int(self.counts.sum())

    def shuffled(self, seed: int) -> Callable[[Sequence[int], int], NDArray[np.int64]]:
        """Function that returns the rows of some shards, sorted by hash(seed, key, epoch, shard, row)."""

        def shuffle(shards: Sequence[int], epoch: int) -> NDArray[np.int64]:
            spans = [(int(self._begins[shard]), int(self._begins[shard + 1])) for shard in sorted(shards)]
            places = np.concatenate([self._among(self.first + start, self.first + stop) for start, stop in spans])
            places -= self.first
            shard, row = (self._index.numbers(name)[places] for name in ("shard", "row"))
            rank = ranks_of_words(seed, self._index.words[places], epoch, shard, row)
            return self.first + places[np.argsort(rank, kind="stable")]

        return shuffle

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Rows of the mixture in ascending order, block by block."""
        for start in range(self.first, self._stop, _BLOCK):
            yield self._among(start, min(start + _BLOCK, self._stop))

    def _among(self, start: int, stop: int) -> NDArray[np.int64]:
        """Rows of the mixture that are read, from `start` to before `stop`."""
        rows = np.arange(start, stop)
        return rows[self._read(rows)]

    def spread(self, count: int) -> NDArray[np.int64]:
        """About `count` rows, evenly spaced."""
        step, before, found = max(1, self.samples // count), 0, []
        for rows in self.blocks():
            found.append(rows[-before % step :: step])
            before += len(rows)
        return np.concatenate(found)


def turns(shares: NDArray[np.float64], taken: Sequence[int], count: int) -> NDArray[np.int64]:
    """The source of each of the next `count` turns, after each source has had `taken` turns.

    Tijdeman's chairman assignment (Discrete Mathematics 32, 1980): after t turns, a source of share w has had w * t of
    them, to within 1 - 1 / (2k - 2) for k sources. Among the sources that are far enough behind their share, the next
    turn goes to the one whose deadline is earliest.
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
