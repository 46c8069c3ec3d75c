"""`distill teach`: asks a recipe's teachers about its datasets once, so that training need not.

A file per shard and teacher appears when it is complete; what is there already is left alone, so it may be killed and
started again, and ranks divide the shards. Layout: `distill.teachers.columns`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from curate.core.errors import InputError, RecipeError, StorageError
from curate.core.store.storage import Storage
from distill.recipe import Recipe
from distill.recipe.data import SourceRecipe
from distill.recipe.places import local_folder
from distill.samples.batches.loader import read_in_order
from distill.samples.images.images import Picture, Pictures
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.mixture import Blend
from distill.teachers.base import Answer
from distill.teachers.columns import answer_bytes, columns_key, is_kept, shard_file, writing_shard
from distill.teachers.panel import Teachers
from distill.training.parallel import World, join_world

_BATCH = 64
_SAMPLE = 100_000
_SPARE = 0.95
"""Share of the free disk that may be filled."""


@dataclass
class Job:
    """A dataset, and where the answers of some teachers on it go."""

    dataset: Dataset
    source: SourceRecipe
    keys: dict[str, str]
    """By the teacher's label."""

    def missing(self, storage: Storage, shard: int) -> list[str]:
        """Teachers that have not answered on a shard."""
        return [label for label, key in self.keys.items() if not is_kept(storage, shard_file(key, shard))]


def jobs_of(recipe: Recipe, blends: Sequence[Blend]) -> list[Job]:
    """blends: of each stage. RecipeError where no answer would hold for more than one visit."""
    jobs: list[Job] = []
    seen: set[str] = set()
    for stage, blend in zip(recipe.staged(), blends, strict=True):
        for dataset, source in zip(blend.sources, blend.recipes, strict=True):
            found = {item.label: columns_key(dataset, source, item, stage) for item in stage.teachers}
            keys = {label: key for label, key in found.items() if key is not None and key not in seen}
            seen.update(keys.values())
            jobs += [Job(dataset, source, keys)] if keys else []
    if not jobs:
        raise RecipeError(
            "nothing to keep: teachers see another picture at every visit (data.augment, or several sizes of one "
            "source for pictures: student); take these out of the recipe, or train without a teacher_cache"
        )
    return jobs


def teach(recipe: Recipe, blends: Sequence[Blend], console: Console) -> Path:
    """Fill run.teacher_cache; returns the folder."""
    if recipe.run.teacher_cache is None:
        raise RecipeError("run.teacher_cache: missing; name the folder to fill, as in --set run.teacher_cache=FOLDER")
    jobs = jobs_of(recipe, blends)
    folder = local_folder(recipe.run.teacher_cache, "run.teacher_cache")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"run.teacher_cache: {folder} cannot be made ({error.strerror}); name another") from error
    with join_world(recipe.run.device, recipe.run.timeout_seconds) as world:
        teacher = _Teaching(recipe, Storage(str(folder)), world, console)
        for job in jobs:
            teacher.do(job)
        world.barrier()
    return folder


class _Teaching:
    def __init__(self, recipe: Recipe, storage: Storage, world: World, console: Console) -> None:
        self.recipe, self.storage, self.world, self.console = recipe, storage, world, console
        self.keep = {item.label: item.keep for item in recipe.teachers}
        self.teachers = Teachers.of(recipe, world.device)

    def do(self, job: Job) -> None:
        shards = job.dataset.integers("shard")
        # as the first rank finds it: another one looks a moment later, when some are done, and would divide otherwise
        listed = [shard for shard in np.unique(shards).tolist() if job.missing(self.storage, shard)]
        todo: list[int] = self.world.gather(listed)[0]
        blend = Blend([job.dataset], [job.source])
        pictures = Pictures(blend, patch=self.recipe.student.patch, teachers=self.teachers, reads_text=False)
        if todo:
            self._announce(job, pictures, np.flatnonzero(np.isin(shards, todo)))
        done = skipped = 0
        with Progress(console=self.console, disable=not (self.world.first and self.console.is_terminal)) as progress:
            for shard in progress.track(todo[self.world.rank :: self.world.size], description=job.dataset.url):
                good, bad = self._shard(job, pictures, shard, np.flatnonzero(shards == shard))
                done, skipped = done + good, skipped + bad
        done, skipped = map(int, self.world.numbers([done, skipped]))
        self._say(
            f"{job.dataset.url}: {', '.join(job.keys)} asked about {done} pictures, {skipped} could not be read, "
            f"{len(shards) - done - skipped} were known"
        )

    def _shard(self, job: Job, pictures: Pictures, shard: int, rows: np.ndarray) -> tuple[int, int]:
        """Pictures that were and were not read."""
        good = bad = 0
        with ExitStack() as stack:
            writers = {
                label: stack.enter_context(
                    writing_shard(self.storage, shard_file(job.keys[label], shard), self.keep[label])
                )
                for label in job.missing(self.storage, shard)
            }
            read = read_in_order(pictures, rows, batch=_BATCH, workers=self.recipe.run.workers)
            for items, skipped in read:
                for label, writer in writers.items():
                    writer.add([item.row for item in items], self._ask(label, items))
                good, bad = good + len(items), bad + len(skipped)
        return good, bad

    def _ask(self, label: str, pictures: Sequence[Picture]) -> list[Answer]:
        return self.teachers.ask(self.teachers.names.index(label), pictures) if pictures else []

    def _announce(self, job: Job, pictures: Pictures, rows: np.ndarray) -> None:
        """What it will take, before it begins. InputError where there is no room."""
        first = next(self._readable(pictures, rows), None)
        if first is None:
            raise InputError(f"{job.dataset.url}: no picture of it can be read; look at it with `curate status`")
        sizes = {}
        some = rows[:: max(1, len(rows) // _SAMPLE)]
        mean = float(pictures.tokens(some, np.zeros(len(some), dtype=np.int64)).mean())
        native = {item.label for item in self.recipe.teachers if item.pictures == "student"}
        for label in job.keys:
            sizes[label] = answer_bytes(self._ask(label, [first])[0], mean if label in native else None)
        whole = sum(sizes.values()) * len(rows)
        said = ", ".join(f"{label} {size / 1e3:.1f} kB" for label, size in sizes.items())
        self._say(f"{job.dataset.url}: {len(rows)} pictures, each {said}: {whole / 1e9:.2f} GB in {self.storage.root}")
        free = shutil.disk_usage(self.storage.root).free
        if whole > _SPARE * free:
            raise InputError(
                f"run.teacher_cache: {whole / 1e9:.1f} GB asked for, {free / 1e9:.1f} GB free in {self.storage.root}; "
                f"name a larger disk, set keep: float16 or weight 0 for patches, or train without it"
            )

    def _readable(self, pictures: Pictures, rows: np.ndarray) -> Iterator[Picture]:
        for items, _ in read_in_order(pictures, rows[:1000], batch=1, workers=1):
            yield from items

    def _say(self, text: str) -> None:
        if self.world.first:
            self.console.print(text, highlight=False, soft_wrap=True)
