"""One pass over pictures, each model asked once, and what looks at the answers on the way.

A watcher keeps what its task needs and no more: vectors of every picture, but only sums of patches. Ranks share the
pictures; what they have seen is put together afterwards, so none waits for another in the middle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import CurateError
from distill.evaluation.subjects import Answer, Subject
from distill.evaluation.tasks.fidelity import Agreement
from distill.samples.batches.loader import Batch, collate, read_in_order
from distill.samples.images.images import Pictures
from distill.samples.images.patches import unpatchify
from distill.teachers import Target, Teachers
from distill.training.parallel import World

Floats = NDArray[np.floating[Any]]
Found = TypeVar("Found")
_BATCH = 64


@dataclass
class Seen:
    """A batch, with what every model said of it."""

    batch: Batch
    rows: list[int]
    answers: dict[str, Answer]
    targets: dict[str, Target]

    def of_each(self, patches_NP: Floats) -> Iterator[tuple[int, Floats]]:
        """Rows, and the part (rows, columns, P) of end-to-end patches that is each picture's."""
        ends = np.cumsum([rows * columns for rows, columns in self.batch.grids])[:-1]
        for row, grid, own in zip(self.rows, self.batch.grids, np.split(patches_NP, ends), strict=True):
            yield row, own.reshape(*grid, -1)


class Watcher(Protocol):
    def see(self, seen: Seen) -> None: ...

    def merge(self, world: World) -> None:
        """Put together what all ranks have seen; every rank gets it."""


@dataclass
class Models:
    """Everything that is asked, and how pictures are read for it."""

    subjects: Sequence[Subject]
    teachers: Teachers | None
    pictures: Pictures
    world: World
    workers: int = 2

    def watch(self, rows: NDArray[np.int64], watchers: Sequence[Watcher]) -> Counter[str]:
        """Show rows (n), the same on every rank, to the watchers. Returns why pictures were skipped, and how many.

        What one rank cannot go on after is raised on all.
        """
        skipped = agreed(self.world, lambda: self._look(rows[self.world.rank :: self.world.size], watchers))
        for watcher in watchers:
            watcher.merge(self.world)
        total: Counter[str] = Counter()
        for part in self.world.gather(skipped):
            total.update(part)
        return total

    def _look(self, rows: NDArray[np.int64], watchers: Sequence[Watcher]) -> Counter[str]:
        """This rank's rows."""
        skipped: Counter[str] = Counter()
        for pictures, bad in read_in_order(self.pictures, rows, batch=_BATCH, workers=self.workers):
            skipped.update(item.reason for item in bad)
            if pictures:
                seen = self.ask(collate(pictures))
                for watcher in watchers:
                    watcher.see(seen)
        return skipped

    def ask(self, batch: Batch) -> Seen:
        names = self.teachers.names if self.teachers is not None else []
        found = self.teachers.targets(batch) if self.teachers is not None else []
        targets = dict(zip(names, found, strict=True))
        answers = {subject.name: subject(batch, targets) for subject in self.subjects}
        return Seen(batch, [picture.row for picture in batch.pictures], answers, targets)


def agreed(world: World, work: Callable[[], Found]) -> Found:
    """What `work` gives on this rank. It may not wait for other ranks; an error of one is raised on every one, so that
    the others do not wait for it later."""
    found, error = None, None
    try:
        found = work()
    except CurateError as raised:
        error = raised
    for raised_there in world.gather(error):
        if raised_there is not None:
            raise raised_there
    return cast(Found, found)


def added(parts: Sequence[dict[Any, Any]]) -> dict[Any, Any]:
    """Values of several dicts, added up by key."""
    total: dict[Any, Any] = {}
    for part in parts:
        for key, value in part.items():
            if key in total:
                total[key] += value
            else:
                total[key] = value
    return total


def joined(parts: Sequence[dict[Any, dict[int, Any]]]) -> dict[Any, dict[int, Any]]:
    """Values by key and row, of several ranks that had different rows."""
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: {row: one for part in parts for row, one in part.get(key, {}).items()} for key in keys}


class Vectors:
    """Summaries, and vectors in the spaces wanted, of every picture: by (model, space), by row."""

    SUMMARY = None

    def __init__(self) -> None:
        self.found: dict[tuple[str, str | None], dict[int, Floats]] = {}

    def see(self, seen: Seen) -> None:
        for name, answer in seen.answers.items():
            for space, vectors in [(self.SUMMARY, answer.summary), *answer.spaces.items()]:
                own = self.found.setdefault((name, space), {})
                own.update(zip(seen.rows, vectors, strict=True))

    def merge(self, world: World) -> None:
        self.found = joined(world.gather(self.found))

    @property
    def rows(self) -> set[int]:
        """That could be read."""
        return set(next(iter(self.found.values()), {}))

    def stack(self, model: str, space: str | None, rows: Sequence[int]) -> NDArray[np.float32]:
        own = self.found[model, space]
        return np.stack([own[int(row)] for row in rows])


class Fidelity:
    """Agreement of what students foretell with what teachers say, by (student, teacher, kind)."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, str], Agreement] = {}

    def see(self, seen: Seen) -> None:
        for name, answer in seen.answers.items():
            for teacher, said in answer.foretold.items():
                true = seen.targets.get(teacher)
                if true is None:
                    continue
                for kind in ("summary", "patches"):
                    one, other = getattr(said, kind), getattr(true, kind)
                    if one is not None and other is not None:
                        self._add((name, teacher, kind), one.numpy(), other.numpy())

    def _add(self, key: tuple[str, str, str], said: Floats, true: Floats) -> None:
        self.found.setdefault(key, Agreement.empty(true.shape[1])).add(said, true)

    def merge(self, world: World) -> None:
        self.found = added(world.gather(self.found))


class Patches:
    """Patch features and pixels of a few pictures, to be drawn."""

    def __init__(self, patch: int) -> None:
        self._patch = patch
        self.pixels: dict[int, NDArray[np.uint8]] = {}
        self.found: dict[str, dict[int, Floats]] = {}

    def see(self, seen: Seen) -> None:
        for picture in seen.batch.pictures:
            rows, columns = picture.grid
            self.pixels[picture.row] = unpatchify(picture.patches, columns, rows, self._patch)
        for name, answer in seen.answers.items():
            if answer.patches is not None:
                self.found.setdefault(name, {}).update(seen.of_each(answer.patches))

    def merge(self, world: World) -> None:
        self.pixels = {row: one for part in world.gather(self.pixels) for row, one in part.items()}
        self.found = joined(world.gather(self.found))
