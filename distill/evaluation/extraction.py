"""One pass over images: each model computes the features of each batch once, and evaluators observe them.

An evaluator keeps only what its task needs: vectors of all images, but only sums over patches. Ranks share the images
and merge their evaluators after the pass, so no rank waits for another during it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import CurateError
from distill.evaluation.datasets import EvaluationSet
from distill.evaluation.models import EvaluatedModel, ModelOutput
from distill.parallel import World
from distill.samples.batches.loader import Batch, collate, read_in_order
from distill.samples.images.reader import ImageReader
from distill.teachers import Target, Teachers

Floats = NDArray[np.floating[Any]]
T = TypeVar("T")
_BATCH = 64


@dataclass
class FeatureBatch:
    """A batch with the output of every model."""

    batch: Batch
    rows: list[int]
    outputs: dict[str, ModelOutput]
    targets: dict[str, Target]

    @property
    def grids(self) -> list[tuple[int, int]]:
        """(rows, columns) of patches of each image, of a clip with its frames below each other."""
        return [(image.frames * image.grid[0], image.grid[1]) for image in self.batch.images]

    def per_image(self, patches_NP: Floats) -> Iterator[tuple[int, Floats]]:
        """Splits end-to-end patches: the row and the patches (rows, columns, P) of each image, see `grids`."""
        ends = np.cumsum([rows * columns for rows, columns in self.grids])[:-1]
        for row, grid, own in zip(self.rows, self.grids, np.split(patches_NP, ends), strict=True):
            yield row, own.reshape(*grid, -1)


class Evaluator(Protocol):
    def update(self, features: FeatureBatch) -> None: ...

    def merge(self, world: World) -> None:
        """Combine the states of all ranks; afterwards every rank has the same state."""


def reader_of(data: EvaluationSet, patch: int, teachers: Teachers | None, *, whole: bool = False) -> ImageReader:
    """Reads the images of a set at its resolution, brought to it as the set says."""
    limit = None if data.side is None else (data.side // patch) ** 2
    return ImageReader(
        data.mixture, patch=patch, max_tokens=limit, teachers=teachers, whole=whole, enlarge=data.side is not None,
        square=data.square,
    )  # fmt: skip


@dataclass
class FeatureExtractor:
    """The evaluated models, and how to read images for them."""

    models: Sequence[EvaluatedModel]
    teachers: Teachers | None
    reader: ImageReader
    world: World
    workers: int = 2
    stopped: Callable[[], bool] = bool
    """Whether this rank shall stop at once."""

    def run(self, rows: NDArray[np.int64], evaluators: Sequence[Evaluator]) -> Counter[str]:
        """Update the evaluators with rows (n,), the same on every rank. Returns how many images were skipped, by
        reason. An error on one rank is raised on all, StoppedError too."""
        skipped = raise_on_all_ranks(
            self.world, lambda: self._run(rows[self.world.rank :: self.world.size], evaluators)
        )
        for evaluator in evaluators:
            evaluator.merge(self.world)
        total: Counter[str] = Counter()
        for part in self.world.gather(skipped):
            total.update(part)
        return total

    def _run(self, rows: NDArray[np.int64], evaluators: Sequence[Evaluator]) -> Counter[str]:
        """The rows of this rank."""
        skipped: Counter[str] = Counter()
        for images, bad in read_in_order(self.reader, rows, batch=_BATCH, workers=self.workers):
            if self.stopped():
                raise StoppedError("stopped")
            skipped.update(item.reason for item in bad)
            if images:
                features = self.extract(collate(images))
                for evaluator in evaluators:
                    evaluator.update(features)
        return skipped

    def extract(self, batch: Batch) -> FeatureBatch:
        names = self.teachers.names if self.teachers is not None else []
        found = self.teachers.targets(batch) if self.teachers is not None else []
        targets = dict(zip(names, found, strict=True))
        outputs = {model.name: model(batch, targets) for model in self.models}
        return FeatureBatch(batch, [image.row for image in batch.images], outputs, targets)


class StoppedError(CurateError):
    """The process has received a signal to stop."""


def raise_on_all_ranks(world: World, work: Callable[[], T]) -> T:
    """Result of `work` on this rank. If it fails on one rank, every rank raises that error, so that no rank waits for
    the failed one later. `work` itself must not wait for other ranks."""
    result, error = None, None
    try:
        result = work()
    except CurateError as raised:
        error = raised
    for raised_there in world.gather(error):
        if raised_there is not None:
            raise raised_there
    return cast(T, result)


def summed(parts: Sequence[dict[Any, Any]]) -> dict[Any, Any]:
    """Sum of the values of several dicts, by key."""
    total: dict[Any, Any] = {}
    for part in parts:
        for key, value in part.items():
            if key in total:
                total[key] += value
            else:
                total[key] = value
    return total


def united(parts: Sequence[dict[Any, dict[int, Any]]]) -> dict[Any, dict[int, Any]]:
    """Values by key and row, from several ranks with different rows."""
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: {row: one for part in parts for row, one in part.get(key, {}).items()} for key in keys}


class Vectors:
    """Evaluator that keeps the summary of every image, and its vectors in all spaces: by (model, space), by row."""

    SUMMARY = None

    def __init__(self) -> None:
        self.values: dict[tuple[str, str | None], dict[int, Floats]] = {}

    def update(self, features: FeatureBatch) -> None:
        for name, output in features.outputs.items():
            for space, vectors in [(self.SUMMARY, output.summary), *output.spaces.items()]:
                own = self.values.setdefault((name, space), {})
                own.update(zip(features.rows, vectors, strict=True))

    def merge(self, world: World) -> None:
        self.values = united(world.gather(self.values))

    @property
    def rows(self) -> set[int]:
        """Rows whose images could be read."""
        return set(next(iter(self.values.values()), {}))

    def stack(self, model: str, space: str | None, rows: Sequence[int]) -> NDArray[np.float32]:
        own = self.values[model, space]
        return np.stack([own[int(row)] for row in rows])
