"""The endless sequence of training steps: which images are packed together, in which step, in which epoch.

Everything is planned from the index before a byte is read, as a pure function of (index, seed, parameters): the global
order of an epoch (see `track`) is cut into look-ahead windows, each window is packed, and `sequences` consecutive
sequences make a step. Ranks and workers only divide what a step holds, so its images are the same for any number of
them. The last step of an epoch holds what is left; no sample is dropped or repeated to round it up.

Where sources have several modalities, each step is of one, drawn by hash(seed, step) with P(m) proportional to the
images of m that are left in the epoch over the images of its step: N_m / B_m at the beginning (Xray, section 4.1), and
later such that all modalities run out together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import InputError, RecipeError
from curate.core.hashing import digest, make_key, ranks
from distill.samples.batches.draws import choose
from distill.samples.batches.track import Lengths, Packing, Place, Track
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.mixture import Blend, as_blend

__all__ = ["Packing", "Place", "Position", "Step", "Stream"]

_SALT = 0x30DA


@dataclass(frozen=True)
class Position:
    """The next step to be read. Says nothing of ranks or workers: a run may go on with another number of them."""

    step: int = 0
    places: tuple[Place, ...] = ()
    """By modality; empty at the very beginning."""


@dataclass(frozen=True)
class Step:
    epoch: int
    sequences: list[NDArray[np.int64]]
    """Rows of the dataset's index, per sequence of the global batch."""
    epochs: list[NDArray[np.int64]]
    """How often the source of each row had been gone through before: a picture's draws are for this number."""
    modality: str
    after: Position
    """Where the following step begins."""


class Stream:
    def __init__(
        self,
        dataset: Dataset | Blend,
        read: NDArray[np.int64] | NDArray[np.bool_],
        *,
        seed: int,
        sequences: int | Mapping[str, int],
        tokens: NDArray[np.int64] | Lengths | None = None,
        packing: Packing | None = None,
    ) -> None:
        """read: rows of the index, or which of all (n,) bool; sequences: of a step, by modality where they differ;
        tokens: how long each row to be read is in a sequence, or a function of rows and epochs; None for 1."""
        blend = as_blend(dataset)
        lengths = _lengths(len(blend), read, tokens)
        self._read = read if read.dtype == bool else _mask(len(blend), read)
        if not self._read.any():
            raise InputError(f"{blend.url}: no samples on this side of the split; lower data.test_fraction")
        self.seed, self.packing = seed, packing or Packing()
        self.modalities = list(dict.fromkeys(recipe.modality for recipe in blend.recipes))
        self.sequences = [_of(sequences, modality) for modality in self.modalities]
        self._tracks = self._split(blend, lengths)
        self.digest = digest({
            "dataset": blend.fingerprint, "tracks": [track.plan() for track in self._tracks],
            "modalities": self.modalities, "seed": seed, "step": self.sequences,
        })  # fmt: skip

    @property
    def rows(self) -> NDArray[np.int64]:
        """All that are read."""
        return np.flatnonzero(self._read)

    @cached_property
    def _step_images(self) -> list[float]:
        """About how many a full step holds, by modality."""
        return [count * track.sequence_images() for count, track in zip(self.sequences, self._tracks, strict=True)]

    def _split(self, blend: Blend, lengths: Lengths) -> list[Track]:
        """A track for each modality; weights (or numbers of samples) decide its images in an epoch."""
        spans = pairwise(blend.starts.tolist())
        counts = np.array([np.count_nonzero(self._read[start:stop]) for start, stop in spans])
        weights = np.array([recipe.weight for recipe in blend.recipes], dtype=np.float64)
        weights = np.where(np.isnan(weights), counts, weights)
        kinds = np.array([self.modalities.index(recipe.modality) for recipe in blend.recipes])
        for number, recipe in enumerate(blend.recipes):
            if recipe.weight is not None and not counts[number]:
                raise InputError(
                    f"{blend.urls[number]}: has a weight, but no samples on this side of the split; leave it out"
                )
        tracks = []
        for kind, modality in enumerate(self.modalities):
            mine = kinds == kind
            images = round(counts.sum() * weights[mine].sum() / weights.sum())
            if not images:
                raise InputError(f"data.sources: no samples of modality {modality!r} to train on; leave its source out")
            shares = np.where(mine, weights, 0.0) / weights[mine].sum()
            tracks.append(
                Track(blend, self._read, shares=shares.tolist(), images=images, seed=self.seed, lengths=lengths,
                      packing=self.packing)
            )  # fmt: skip
        return tracks

    def steps(self, start: Position | None = None) -> Iterator[Step]:
        """Steps from a position on, epoch after epoch, without end."""
        position = start or Position()
        number, places = position.step, list(position.places) or [track.start() for track in self._tracks]
        while True:
            epoch = min(track.epoch(place) for track, place in zip(self._tracks, places, strict=True))
            cursors = [_Cursor(*pair, epoch) for pair in zip(self._tracks, places, strict=True)]
            while any(cursor.left for cursor in cursors):
                kind = self._drawn(number, [cursor.left for cursor in cursors])
                held = cursors[kind].take(self.sequences[kind])
                number, places[kind] = number + 1, cursors[kind].place
                rows, epochs = [item.rows for item in held], [item.epochs for item in held]
                yield Step(epoch, rows, epochs, self.modalities[kind], Position(number, tuple(places)))

    def _drawn(self, step: int, left: list[int]) -> int:
        """The modality of a step, given the images that each has left in the epoch."""
        if len(left) == 1:
            return 0
        rank = ranks(self.seed, [make_key("step", str(step))], _SALT)
        return int(choose(rank, [count / size for count, size in zip(left, self._step_images, strict=True)])[0])

    def state(self, position: Position) -> dict[str, Any]:
        """JSON-able."""
        return {"plan": self.digest, **asdict(position)}

    def position(self, state: dict[str, Any]) -> Position:
        """Raises InputError for a state of another dataset, seed or packing: the remaining samples would differ."""
        if state["plan"] != self.digest:
            raise InputError(f"reader state of plan {state['plan']}, but this reader's is {self.digest}; start anew")
        places = (Place(tuple(place["taken"]), place["sequence"]) for place in state["places"])
        return Position(state["step"], tuple(places))


class _Cursor:
    """A track's way through what an epoch has left."""

    def __init__(self, track: Track, place: Place, epoch: int) -> None:
        self.place, self.left = place, 0
        if track.epoch(place) == epoch:
            self.left = track.left(place)
            self._packed = track.packed(place)

    def take(self, sequences: int) -> list[Any]:
        held = list(islice(self._packed, sequences))
        self.left -= sum(len(item.rows) for item in held)
        self.place = held[-1].after
        return held


def _of(sequences: int | Mapping[str, int], modality: str) -> int:
    if isinstance(sequences, int):
        return sequences
    if modality not in sequences:
        known = ", ".join(sequences) or "none"
        raise RecipeError(
            f"train.sequences: nothing for modality {modality!r} of data.sources, only for {known}; add it"
        )
    return sequences[modality]


def _mask(n: int, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(n, dtype=bool)
    mask[rows] = True
    return mask


def _lengths(n: int, read: NDArray[Any], tokens: NDArray[np.int64] | Lengths | None) -> Lengths:
    if tokens is None:
        return lambda rows, _: np.ones(len(rows), dtype=np.int64)
    if callable(tokens):
        return tokens
    by_row = np.ones(n, dtype=np.int64)
    by_row[read] = tokens
    return lambda rows, _: by_row[rows]
