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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import InputError, RecipeError
from curate.core.hashing import digest, make_key, ranks
from distill.samples.batches.draws import Draws, choose
from distill.samples.batches.track import Lengths, Packing, Read, Source, Track, TrackPosition
from distill.samples.images.counts import PatchCounts
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.mixture import Mixture, as_mixture

if TYPE_CHECKING:
    from distill.recipe import Recipe

_SALT = 0x30DA


@dataclass(frozen=True)
class Position:
    """The next step to read. Independent of ranks and workers, so a run may resume with a different number of them."""

    step: int = 0
    places: tuple[TrackPosition, ...] = ()
    """Position in each modality's track; empty at the very beginning."""


@dataclass(frozen=True)
class Counted:
    """What only a look at every row of the index tells about a stream; kept with a run, so that its steps can be
    planned again at once."""

    shards: list[list[int]]
    """Samples to read of each shard of each source."""
    sequence_images: list[float]
    """Estimated images of a full sequence, by modality."""


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
        read: NDArray[np.int64] | NDArray[np.bool_] | Read,
        *,
        seed: int,
        sequences: int | Mapping[str, int],
        tokens: NDArray[np.int64] | Lengths | None = None,
        packing: Packing | None = None,
        counted: Counted | None = None,
    ) -> None:
        """read: rows of the index, a mask (n,), or a function of rows; sequences: per step, by modality if they differ;
        tokens: length of each row of `read` in a sequence, or a function of rows and epochs; None for 1; counted: of an
        equal stream, so that no row is read before it is needed."""
        mixture = as_mixture(dataset)
        lengths = _lengths(len(mixture), read, tokens)
        self._read = read if callable(read) else _mask(len(mixture), read)
        shards = [None] * len(mixture.sources) if counted is None else counted.shards
        self._sources = [Source(mixture, number, self._read, own) for number, own in enumerate(shards)]
        if not any(own.samples for own in self._sources):
            raise InputError(f"{mixture.url}: no training samples; lower data.test_fraction or add samples")
        self.seed, self.packing = seed, packing or Packing()
        self.modalities = list(dict.fromkeys(recipe.modality for recipe in mixture.recipes))
        self.sequences = [sequences_of(sequences, modality) for modality in self.modalities]
        self._fingerprint = mixture.fingerprint
        self._tracks = self._split(mixture, lengths, counted)

    @cached_property
    def digest(self) -> str:
        """Digest of all that determines the steps; reads all rows of the index."""
        return digest({
            "dataset": self._fingerprint, "tracks": [track.plan() for track in self._tracks],
            "modalities": self.modalities, "seed": self.seed, "step": self.sequences,
        })  # fmt: skip

    @property
    def rows(self) -> NDArray[np.int64]:
        """All rows read."""
        return np.concatenate([rows for own in self._sources for rows in own.blocks()])

    def counted(self) -> Counted:
        return Counted(
            [own.counts.tolist() for own in self._sources], [track.sequence_images() for track in self._tracks]
        )

    def reads(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of rows (n,) are read."""
        return self._read(rows)

    def track_of(self, source: int) -> tuple[int, Track]:
        """The track, by its number too, of the modality of a source."""
        return self._kinds[source], self._tracks[self._kinds[source]]

    @cached_property
    def _step_images(self) -> list[float]:
        """Estimated images of a full step, by modality."""
        return [count * track.sequence_images() for count, track in zip(self.sequences, self._tracks, strict=True)]

    def _split(self, mixture: Mixture, lengths: Lengths, counted: Counted | None) -> list[Track]:
        """A track per modality. Weights (or sample counts) decide its number of images in an epoch."""
        counts = np.array([own.samples for own in self._sources])
        weights = np.array([recipe.weight for recipe in mixture.recipes], dtype=np.float64)
        weights = np.where(np.isnan(weights), counts, weights)
        self._kinds = [self.modalities.index(recipe.modality) for recipe in mixture.recipes]
        kinds = np.array(self._kinds)
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
                Track(self._sources, shares=shares.tolist(), images=images, seed=self.seed, lengths=lengths,
                      packing=self.packing,
                      sequence_images=None if counted is None else counted.sequence_images[kind])
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
        return position_of(state["step"], state["places"])


def position_of(step: int, places: Iterable[Mapping[str, Any]]) -> Position:
    """The position that `asdict` made `places` of."""
    return Position(step, tuple(TrackPosition(tuple(place["taken"]), place["sequence"]) for place in places))


def training_stream(
    recipe: Recipe, mixture: Mixture, read: NDArray[np.bool_] | Read, counted: Counted | None = None
) -> Stream:
    """The steps of a stage (`Recipe.staged`). read: the samples to train on."""
    data, prefix = recipe.data, recipe.student.prefix
    limits = [source.sizes for source in mixture.recipes]
    counts = PatchCounts(mixture, Draws(mixture, recipe.seed), patch=recipe.student.patch, limits=limits)
    return Stream(
        mixture,
        read,
        seed=recipe.seed,
        sequences=recipe.train.sequences,
        tokens=lambda rows, epochs: counts.places(rows, epochs, prefix),
        packing=Packing(data.sequence_tokens, data.sequence_images, data.lookahead, data.lanes, data.window_shards),
        counted=counted,
    )


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


def _mask(n: int, read: NDArray[Any]) -> Read:
    among = np.zeros(n, dtype=bool)
    among[read] = True
    return lambda rows: among[rows]


def _lengths(n: int, read: NDArray[Any] | Read, tokens: NDArray[np.int64] | Lengths | None) -> Lengths:
    if tokens is None:
        return lambda rows, _: np.ones(len(rows), dtype=np.int64)
    if callable(tokens):
        return tokens
    by_row = np.ones(n, dtype=np.int64)
    assert not callable(read)
    by_row[read] = tokens
    return lambda rows, _: by_row[rows]
