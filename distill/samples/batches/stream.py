"""The endless sequence of training steps: which images are packed together, in which step, in which epoch.

Everything is planned from the index before any image is read, as a pure function of (index, seed, parameters): the
global order of an epoch (see `track`) is split into look-ahead windows, each window is packed, and `sequences`
consecutive sequences make a step. Ranks and workers only divide a step among them, so a step has the same images for
any number of ranks and workers. The last step of an epoch is smaller; no sample is dropped or repeated to fill it.

If the sources have several modalities, each step has one modality, drawn by hash(seed, step). P(m) is proportional to
the images of m left in the epoch over the images of m in a step: N_m / B_m at the beginning (Xray, section 4.1), so
that all modalities run out together.
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
from distill.samples.batches.track import Lengths, Packing, Track, TrackPosition
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.mixture import Mixture, as_mixture

_SALT = 0x30DA


@dataclass(frozen=True)
class Position:
    """The next step to read. Independent of ranks and workers, so a run may resume with a different number of them."""

    step: int = 0
    places: tuple[TrackPosition, ...] = ()
    """Position in each modality's track; empty at the very beginning."""


@dataclass(frozen=True)
class StepPlan:
    epoch: int
    sequences: list[NDArray[np.int64]]
    """Rows of the dataset's index, per sequence of the global batch."""
    epochs: list[NDArray[np.int64]]
    """Epochs that the source of each row had completed before; an image's random draws depend on it."""
    modality: str
    after: Position
    """Position of the next step."""


class Stream:
    def __init__(
        self,
        dataset: Dataset | Mixture,
        read: NDArray[np.int64] | NDArray[np.bool_],
        *,
        seed: int,
        sequences: int | Mapping[str, int],
        tokens: NDArray[np.int64] | Lengths | None = None,
        packing: Packing | None = None,
    ) -> None:
        """read: rows of the index, or a mask (n,); sequences: per step, by modality if they differ; tokens: length of
        each row of `read` in a sequence, or a function of rows and epochs; None for 1."""
        mixture = as_mixture(dataset)
        lengths = _lengths(len(mixture), read, tokens)
        self._read = np.zeros(len(mixture), dtype=bool)
        self._read[read] = True
        if not self._read.any():
            raise InputError(f"{mixture.url}: no training samples; lower data.test_fraction or add samples")
        self.seed, self.packing = seed, packing or Packing()
        self.modalities = list(dict.fromkeys(recipe.modality for recipe in mixture.recipes))
        self.sequences = [sequences_of(sequences, modality) for modality in self.modalities]
        self._tracks = self._split(mixture, lengths)
        self.digest = digest({
            "dataset": mixture.fingerprint, "tracks": [track.plan() for track in self._tracks],
            "modalities": self.modalities, "seed": seed, "step": self.sequences,
        })  # fmt: skip

    @property
    def rows(self) -> NDArray[np.int64]:
        """All rows read."""
        return np.flatnonzero(self._read)

    @cached_property
    def _step_images(self) -> list[float]:
        """Estimated images of a full step, by modality."""
        return [count * track.sequence_images() for count, track in zip(self.sequences, self._tracks, strict=True)]

    def _split(self, mixture: Mixture, lengths: Lengths) -> list[Track]:
        """A track per modality. Weights (or sample counts) decide its number of images in an epoch."""
        spans = pairwise(mixture.starts.tolist())
        counts = np.array([np.count_nonzero(self._read[start:stop]) for start, stop in spans])
        weights = np.array([recipe.weight for recipe in mixture.recipes], dtype=np.float64)
        weights = np.where(np.isnan(weights), counts, weights)
        kinds = np.array([self.modalities.index(recipe.modality) for recipe in mixture.recipes])
        for number, recipe in enumerate(mixture.recipes):
            if recipe.weight is not None and not counts[number]:
                raise InputError(f"{mixture.urls[number]}: has a weight, but no training samples; remove the source")
        tracks = []
        for kind, modality in enumerate(self.modalities):
            mine = kinds == kind
            images = round(counts.sum() * weights[mine].sum() / weights.sum())
            if not images:
                raise InputError(f"data.sources: no samples of modality {modality!r} to train on; remove its source")
            shares = np.where(mine, weights, 0.0) / weights[mine].sum()
            tracks.append(
                Track(mixture, self._read, shares=shares.tolist(), images=images, seed=self.seed, lengths=lengths,
                      packing=self.packing)
            )  # fmt: skip
        return tracks

    def steps(self, start: Position | None = None) -> Iterator[StepPlan]:
        """Endless steps from a position on."""
        position = start or Position()
        number, places = position.step, list(position.places) or [track.start() for track in self._tracks]
        while True:
            epoch = min(track.epoch(place) for track, place in zip(self._tracks, places, strict=True))
            cursors = [_Cursor(*pair, epoch) for pair in zip(self._tracks, places, strict=True)]
            while any(cursor.left for cursor in cursors):
                kind = self._draw_modality(number, [cursor.left for cursor in cursors])
                held = cursors[kind].take(self.sequences[kind])
                number, places[kind] = number + 1, cursors[kind].place
                rows, epochs = [item.rows for item in held], [item.epochs for item in held]
                yield StepPlan(epoch, rows, epochs, self.modalities[kind], Position(number, tuple(places)))

    def _draw_modality(self, step: int, left: list[int]) -> int:
        """The modality of a step, given the images that each modality has left in the epoch."""
        if len(left) == 1:
            return 0
        rank = ranks(self.seed, [make_key("step", str(step))], _SALT)
        return int(choose(rank, [count / size for count, size in zip(left, self._step_images, strict=True)])[0])

    def state(self, position: Position) -> dict[str, Any]:
        """JSON-able state of the reader."""
        return {"plan": self.digest, **asdict(position)}

    def position(self, state: dict[str, Any]) -> Position:
        """Raises InputError if the state belongs to another dataset, seed or packing: the samples would differ."""
        if state["plan"] != self.digest:
            raise InputError(f"reader state: plan {state['plan']}, but the reader's is {self.digest}; start a new run")
        places = (TrackPosition(tuple(place["taken"]), place["sequence"]) for place in state["places"])
        return Position(state["step"], tuple(places))


class _Cursor:
    """Reads a track to the end of the current epoch."""

    def __init__(self, track: Track, place: TrackPosition, epoch: int) -> None:
        self.place, self.left = place, 0
        if track.epoch(place) == epoch:
            self.left = track.left(place)
            self._packed = track.packed(place)

    def take(self, sequences: int) -> list[Any]:
        held = list(islice(self._packed, sequences))
        self.left -= sum(len(item.rows) for item in held)
        self.place = held[-1].after
        return held


def sequences_of(sequences: int | Mapping[str, int], modality: str) -> int:
    if isinstance(sequences, int):
        return sequences
    if modality not in sequences:
        known = ", ".join(sequences) or "none"
        raise RecipeError(
            f"train.sequences: no value for modality {modality!r} of data.sources, only for {known}; add one"
        )
    return sequences[modality]


def _lengths(n: int, read: NDArray[Any], tokens: NDArray[np.int64] | Lengths | None) -> Lengths:
    if tokens is None:
        return lambda rows, _: np.ones(len(rows), dtype=np.int64)
    if callable(tokens):
        return tokens
    by_row = np.ones(n, dtype=np.int64)
    by_row[read] = tokens
    return lambda rows, _: by_row[rows]
