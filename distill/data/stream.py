"""The endless sequence of training steps: which images are packed together, in which step, in which epoch.

Everything is planned from the index before a byte is read, as a pure function of (index, seed, parameters): the
epoch's global order (see `order`) is cut into look-ahead windows, each window is packed, and `sequences` consecutive
sequences make a step. Ranks and workers only divide what a step holds, so its images are the same for any number of
them. The last step of an epoch holds what is left; no sample is dropped or repeated to round it up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import InputError
from curate.core.hashing import digest, digest_bytes
from distill.data.dataset import Dataset
from distill.data.order import epoch_order
from distill.data.packing import first_fit_decreasing


@dataclass(frozen=True)
class Position:
    """The next sequence to be read. Says nothing of ranks or workers: a run may go on with another number of them."""

    epoch: int = 0
    window: int = 0
    sequence: int = 0
    """Within the window."""


@dataclass(frozen=True)
class Step:
    epoch: int
    sequences: list[NDArray[np.int64]]
    """Rows of the dataset's index, per sequence of the global batch."""
    after: Position
    """Where the following step begins."""

    def share(self, rank: int, world: int) -> list[NDArray[np.int64]]:
        """Sequences of one rank: every world-th, from its own on. May be empty; every rank still takes the step."""
        return self.sequences[rank::world]


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


class Stream:
    """rows (n,): the samples to be read, by row of the index; tokens (n,): how long each is in a sequence."""

    def __init__(
        self,
        dataset: Dataset,
        rows: NDArray[np.int64],
        *,
        seed: int,
        sequences: int,
        tokens: NDArray[np.int64] | None = None,
        packing: Packing | None = None,
    ) -> None:
        if not len(rows):
            raise InputError(f"{dataset.url}: no samples on this side of the split; lower data.test_fraction")
        self.rows = rows
        self.tokens = np.ones(len(rows), dtype=np.int64) if tokens is None else tokens
        self.seed, self.sequences, self.packing = seed, sequences, packing or Packing()
        self._keys = np.asarray(dataset.strings("key"), dtype=object)[rows]
        self._shards, self._shard_rows = dataset.integers("shard")[rows], dataset.integers("row")[rows]
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, dtype=np.int64))
        plan = {"dataset": dataset.fingerprint, "rows": digest_bytes([rows.tobytes()]), **asdict(self.packing)}
        self.digest = digest({**plan, "tokens": digest_bytes([self.tokens.tobytes()]), "seed": seed, "step": sequences})

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Global order (n,) of an epoch: places in `rows`."""
        if self._order[0] != epoch:
            cut = {"lanes": self.packing.lanes, "window_shards": self.packing.window_shards}
            order = epoch_order(self._keys, self._shards, self._shard_rows, seed=self.seed, epoch=epoch, **cut)
            self._order = (epoch, order)
        return self._order[1]

    def packed(self, start: Position) -> Iterator[tuple[NDArray[np.int64], Position]]:
        """Sequences of the rest of an epoch, each with the position after it."""
        order, size = self.order(start.epoch), self.packing.lookahead
        skip = start.sequence
        for window in range(start.window, -(-len(order) // size)):
            places = order[window * size : (window + 1) * size]
            bins = first_fit_decreasing(self.tokens[places].tolist(), self.packing.capacity, self.packing.images)
            for number in range(skip, len(bins)):
                last = number + 1 == len(bins)
                after = Position(start.epoch, window + last, 0 if last else number + 1)
                yield self.rows[places[bins[number]]], after
            skip = 0

    def steps(self, start: Position | None = None) -> Iterator[Step]:
        """Steps from a position on, epoch after epoch, without end."""
        position = start or Position()
        while True:
            held: list[NDArray[np.int64]] = []
            for sequence, after in self.packed(position):
                held.append(sequence)
                if len(held) == self.sequences:
                    yield Step(position.epoch, held, after)
                    held = []
            position = Position(position.epoch + 1)
            if held:
                yield Step(position.epoch - 1, held, position)

    def state(self, position: Position) -> dict[str, Any]:
        return {"plan": self.digest, **asdict(position)}

    def position(self, state: dict[str, Any]) -> Position:
        """Raises InputError for a state of another dataset, seed or packing: the remaining samples would differ."""
        if state["plan"] != self.digest:
            raise InputError(f"reader state of plan {state['plan']}, but this reader's is {self.digest}; start anew")
        return Position(state["epoch"], state["window"], state["sequence"])
