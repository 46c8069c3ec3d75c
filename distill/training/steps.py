"""The steps of a run, planned again: the samples that a step saw, and the steps that saw a sample.

No log of keys is kept. A step is a function of the recipe and of the dataset's index, so it is planned again from the
last position before it in metrics.jsonl, which has one per `log_every` steps. plan.json has what only a look at every
row of the index tells, by stage, and [step, ranks] for each start of the run: from which step on how many ranks shared
the steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import accumulate, count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import InputError
from curate.core.hashing import key_words
from distill.recipe import Recipe
from distill.samples.batches.stream import Counted, Position, StepPlan, Stream, position_of, training_stream
from distill.samples.sources.mixture import Mixture, open_again
from distill.samples.sources.split import trained
from distill.training.progress import read_lines
from distill.training.run_folder import RunFolder

_PLAN, _BLOCK = "plan.json", 1 << 22


def record_stage(run: RunFolder, stage: int, step: int, ranks: int, counted: Counted) -> None:
    """Add to plan.json that a stage goes on after `step` with this number of ranks."""
    held = run.read(_PLAN, "stages", "ranks") or {"stages": {}, "ranks": []}
    held["stages"][str(stage)] = asdict(counted)
    held["ranks"] = [[start, size] for start, size in held["ranks"] if start < step] + [[step, ranks]]
    run.write(_PLAN, held)


@dataclass(frozen=True)
class Seen:
    """A step that saw a sample."""

    step: int
    epoch: int
    """Epochs that the sample's source had completed before."""
    rank: int


@dataclass(frozen=True)
class _Stage:
    recipe: Recipe
    mixture: Mixture
    stream: Stream
    before: int
    """Steps before the stage."""
    positions: list[Position]
    """In the stage, in order; the first is its beginning."""


class PastSteps:
    """The steps of a run from 1 on, of all stages. Raises InputError if a dataset has changed or is gone."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.lines = run, read_lines(run)
        self.recipes = run.recipe().staged()
        self.ends = list(accumulate(recipe.train.steps for recipe in self.recipes))
        held = run.read(_PLAN, "stages", "ranks") or {"stages": {}, "ranks": []}
        self._counted, self._ranks = held["stages"], held["ranks"]
        self._datasets = (run.read("run.json", "fingerprint") or {}).get("datasets", {})
        self.done = max(int(self.lines[-1]["step"]) if self.lines else 0, run.last_step() or 0)
        """Steps that the run has taken."""
        self.stage = lru_cache(maxsize=None)(self._stage)

    def stage_of(self, step: int) -> int:
        """Raises InputError for a step that the recipe does not have."""
        if not 1 <= step <= self.ends[-1]:
            raise InputError(f"--step {step}: {self.run.path} has the steps 1 to {self.ends[-1]}; give one of them")
        return bisect_left(self.ends, step)

    def ranks(self, step: int) -> int:
        """Number of ranks that shared a step; 1 if the run is of a version that did not record it."""
        return next((size for start, size in reversed(self._ranks) if start < step), 1)

    def line(self, step: int) -> tuple[int, dict[str, Any]] | None:
        """The line of metrics.jsonl that covers a step, after the first step that it covers; None if there is none, as
        for the last steps before a kill."""
        number = bisect_left(self.lines, step, key=lambda line: int(line["step"]))
        if number == len(self.lines):
            return None
        end = int(self.lines[number]["step"])
        starts = [int(self.lines[number - 1]["step"]) if number else 0, *(start for start, _ in self._ranks)]
        before = max(start for start in starts if start < end)
        return (before + 1, self.lines[number]) if before < step else None

    def plan(self, step: int) -> StepPlan:
        """The samples of a step."""
        stage = self.stage(self.stage_of(step))
        place = step - stage.before - 1
        near = stage.positions[bisect_right(stage.positions, place, key=lambda position: position.step) - 1]
        return next(islice(stage.stream.steps(near), place - near.step, None))

    def seen(self, keys: Sequence[str]) -> dict[str, list[Seen] | None]:
        """The steps that saw each key, in order; empty if it is in the data but was never trained on, and None if it is
        not in the data."""
        found: dict[str, list[Seen] | None] = dict.fromkeys(keys)
        for number in range(len(self.recipes)):
            stage = self.stage(number)
            rows = dict(_rows_of(stage.mixture, list(found)))
            for row, seen in self._seen(stage, list(rows)):
                found[rows[row]] = [*(found[rows[row]] or []), *seen]
        return {key: steps and sorted(steps, key=lambda seen: seen.step) for key, steps in found.items()}

    def _seen(self, stage: _Stage, rows: Sequence[int]) -> Iterator[tuple[int, list[Seen]]]:
        """The steps of a stage that saw rows."""
        found: dict[int, list[Seen]] = {row: [] for row in rows}
        last = min(self.done - stage.before, stage.recipe.train.steps)
        positions = [position for position in stage.positions if position.step <= max(0, last)]
        missing = max(0, last - positions[-1].step)
        *_, end = positions[-1], *(step.after for step in islice(stage.stream.steps(positions[-1]), missing))
        positions.append(end)
        for near, wanted in self._near(stage, positions, rows).items():
            for step in stage.stream.steps(positions[near]):
                if not wanted or step.after.step > last:
                    break
                number, ranks = stage.before + step.after.step, self.ranks(stage.before + step.after.step)
                for sequence, pairs in enumerate(zip(step.sequences, step.epochs, strict=True)):
                    for row, epoch in wanted.intersection(zip(*(item.tolist() for item in pairs), strict=True)):
                        wanted.discard((row, epoch))
                        found[row].append(Seen(number, epoch, sequence % ranks))
        yield from found.items()

    def _near(
        self, stage: _Stage, positions: Sequence[Position], rows: Sequence[int]
    ) -> dict[int, set[tuple[int, int]]]:
        """The place among `positions` of the last that lies before each row in each epoch: place -> (row, epoch)."""
        near: dict[int, set[tuple[int, int]]] = defaultdict(set)
        read = stage.stream.reads(np.array(rows, dtype=np.int64))
        for row in np.array(rows, dtype=np.int64)[read].tolist():
            source, _ = stage.mixture.locate(row)
            kind, track = stage.stream.track_of(source)
            shard = stage.mixture.number("shard", row) - int(stage.mixture.shards[source])
            given = [position.places[kind].taken[source] if position.places else 0 for position in positions]
            for epoch in count():
                before = track.images_before(source, shard, row, epoch)
                if before >= given[-1] + track.packing.lookahead:
                    break
                # a position within the sample's window may follow the sample; the one before that window does not
                place = bisect_left(given, given[bisect_right(given, before) - 1]) - 1
                near[max(0, place)].add((row, epoch))
        return near

    def _stage(self, number: int) -> _Stage:
        recipe, before = self.recipes[number], self.ends[number - 1] if number else 0
        mixture = open_again(recipe.data)
        for source in mixture.sources:
            if self._datasets.get(source.url, source.fingerprint) != source.fingerprint:
                raise InputError(f"{source.url} has changed since {self.run.path} was trained on it; restore it")
        counted = self._counted.get(str(number))
        read = partial(trained, mixture, seed=recipe.seed, fraction=recipe.data.test_fraction)
        stream = training_stream(recipe, mixture, read, None if counted is None else Counted(**counted))
        mine = (line for line in self.lines if line.get("stage") == number and "places" in line)
        positions = [position_of(int(line["step"]) - before, line["places"]) for line in mine]
        return _Stage(recipe, mixture, stream, before, [Position(), *positions])


def _rows_of(mixture: Mixture, keys: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The rows of keys, with their keys; a key may have several. Reads the keys of all rows."""
    words = key_words(keys)
    for source, first in zip(mixture.sources, mixture.starts.tolist(), strict=False):
        for start in range(0, len(source), _BLOCK):
            part: NDArray[np.uint64] = source.index.words[start : start + _BLOCK]
            for place in np.flatnonzero(np.isin(part[:, 0], words[:, 0])).tolist():
                for number in np.flatnonzero((words == part[place]).all(axis=1)).tolist():
                    yield first + start + place, keys[number]
