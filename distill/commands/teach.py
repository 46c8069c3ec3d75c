"""`distill teach`: computes the teachers' features of a recipe's datasets once, for later trainings.

There is a file per shard and teacher, published when it is complete. Existing files stay, so the command can be killed
and started again. Ranks divide the shards. Format: `distill.teachers.feature_cache`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from curate.core.errors import InputError, RecipeError, StorageError
from curate.core.store.storage import Storage
from distill.commands.tags import with_resolved_tags
from distill.parallel import World, join_world
from distill.recipe import Recipe
from distill.recipe.data import SourceRecipe
from distill.recipe.paths import local_folder
from distill.samples.batches.loader import read_in_order
from distill.samples.images.reader import ImageReader, PatchedImage
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.mixture import Mixture, open_mixtures
from distill.samples.texts import Texts
from distill.teachers.base import TeacherFeatures
from distill.teachers.feature_cache import SCHEMA, cache_key, features_bytes, writing_shard
from distill.teachers.shard_files import is_cached, shard_file, writing
from distill.teachers.teachers import Teachers
from distill.teachers.text_cache import SCHEMA as TEXT_SCHEMA
from distill.teachers.text_cache import batch_of, text_key

_BATCH = 64
_SAMPLE = 100_000
_TEXTS = 1024
"""Samples whose texts are in memory at once."""
_SPARE = 0.95
"""Share of the free disk space that may be filled."""


@dataclass
class Job:
    """A dataset, and what to compute of it."""

    dataset: Dataset
    source: SourceRecipe
    keys: dict[str, str]
    """Folders of images' features, by the teacher's label."""
    texts: dict[str, str]
    """Folders of texts' vectors, by the teacher's label."""

    def missing(self, storage: Storage, shard: int) -> list[str]:
        """Teachers whose features of a shard are not in the cache."""
        return [label for label, key in self.keys.items() if not is_cached(storage, shard_file(key, shard), SCHEMA)]


def jobs_of(recipe: Recipe, mixtures: Sequence[Mixture]) -> list[Job]:
    """mixtures: one per stage. RecipeError if no teacher's features can be reused in a later epoch."""
    if not recipe.teachers:
        raise RecipeError("nothing to cache: the recipe has no teachers; name one in `teachers`")
    jobs: list[Job] = []
    listed: set[str] = set()
    for stage, mixture in zip(recipe.staged(), mixtures, strict=True):
        for dataset, source in zip(mixture.sources, mixture.recipes, strict=True):
            found = {item.label: cache_key(dataset, source, item, stage) for item in stage.teachers}
            of_texts = {item.label: text_key(dataset, source, item, stage) for item in stage.teachers}
            keys, texts = (
                {label: key for label, key in each.items() if key is not None and key not in listed}
                for each in (found, of_texts)
            )
            listed.update(keys.values(), texts.values())
            jobs += [Job(dataset, source, keys, texts)] if keys or texts else []
    if not jobs:
        raise RecipeError(
            "nothing to cache: teachers see another version of an image in each epoch (data.augment, or several sizes "
            "of one source with pictures: student); remove these from the recipe, or train without a teacher_cache"
        )
    return jobs


def teach(recipe: Recipe, console: Console) -> Path:
    """Fill run.teacher_cache with the teachers' features of the recipe's datasets; returns the folder."""
    recipe = with_resolved_tags(recipe, console)
    mixtures = open_mixtures(stage.data for stage in recipe.staged())
    if recipe.run.teacher_cache is None:
        raise RecipeError("run.teacher_cache: missing; name the folder to fill, as in --set run.teacher_cache=FOLDER")
    jobs = jobs_of(recipe, mixtures)
    folder = local_folder(recipe.run.teacher_cache, "run.teacher_cache")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"run.teacher_cache: cannot create {folder} ({error.strerror}); name another folder"
        ) from error
    with join_world(recipe.run.device, recipe.run.timeout_seconds) as world:
        writer = CacheWriter(recipe, Storage(str(folder)), world, console)
        for job in jobs:
            writer.write(job)
        world.barrier()
    return folder


class CacheWriter:
    """Computes and stores the features that are missing in the cache."""

    def __init__(self, recipe: Recipe, storage: Storage, world: World, console: Console) -> None:
        self.recipe, self.storage, self.world, self.console = recipe, storage, world, console
        self.keep = {item.label: item.keep for item in recipe.teachers}
        self.teachers = Teachers.of(recipe, world.device)

    def write(self, job: Job) -> None:
        mixture = Mixture([job.dataset], [job.source])
        reader = ImageReader(mixture, patch=self.recipe.student.patch, teachers=self.teachers, reads_text=False)
        if job.keys:
            self._write_images(job, reader)
        for label, key in job.texts.items():
            self._write_texts(job, reader.texts, label, key)

    def _missing(self, job: Job, missing: Callable[[int], bool]) -> list[int]:
        """Shards to compute on all ranks; rank 0 decides: another rank may look later, when some of them are done, and
        would divide them differently."""
        listed = [shard for shard in np.unique(job.dataset.integers("shard")).tolist() if missing(shard)]
        todo: list[int] = self.world.gather(listed)[0]
        return todo

    def _each(self, job: Job, todo: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """This rank's part of some shards, each with its rows."""
        shards, show = job.dataset.integers("shard"), self.world.first and self.console.is_terminal
        with Progress(console=self.console, disable=not show) as progress:
            for shard in progress.track(todo[self.world.rank :: self.world.size], description=job.dataset.url):
                yield shard, np.flatnonzero(shards == shard)

    def _write_images(self, job: Job, reader: ImageReader) -> None:
        todo = self._missing(job, lambda shard: bool(job.missing(self.storage, shard)))
        shards = job.dataset.integers("shard")
        if todo:
            self._announce(job, reader, np.flatnonzero(np.isin(shards, todo)))
        done = skipped = 0
        for shard, rows in self._each(job, todo):
            good, bad = self._write_shard(job, reader, shard, rows)
            done, skipped = done + good, skipped + bad
        done, skipped = map(int, self.world.numbers([done, skipped]))
        self._print(
            f"{job.dataset.url}: {', '.join(job.keys)}: {done} images computed, {skipped} unreadable, "
            f"{len(shards) - done - skipped} cached before"
        )

    def _write_texts(self, job: Job, texts: Texts, label: str, key: str) -> None:
        """Vectors of all texts of the samples, by one teacher."""
        todo = self._missing(job, lambda shard: not is_cached(self.storage, shard_file(key, shard), TEXT_SCHEMA))
        if todo:
            rows = np.flatnonzero(np.isin(job.dataset.integers("shard"), todo))
            some = rows[:_TEXTS]
            count = len(texts.read_all(some, workers=self.recipe.run.workers)) / len(some)
            self._print_size(job, len(rows), {f"{label}'s texts": count * 4 * self.teachers.encoders[label].dim})
        done = 0
        for shard, rows in self._each(job, todo):
            with writing(self.storage, shard_file(key, shard), TEXT_SCHEMA) as file:
                for some in np.array_split(rows, range(_TEXTS, len(rows), _TEXTS)):
                    found = texts.each(texts.all_texts, some, workers=self.recipe.run.workers)
                    vectors = self.teachers.texts(label, [text for own in found for text in own])
                    file.write_batch(batch_of(some.tolist(), found, vectors))
                    done += len(vectors)
        [done] = map(int, self.world.numbers([done]))
        self._print(
            f"{job.dataset.url}: {label}: {done} texts computed in {len(todo)} tars, the others were cached before"
        )

    def _write_shard(self, job: Job, reader: ImageReader, shard: int, rows: np.ndarray) -> tuple[int, int]:
        """Numbers of readable and of unreadable images."""
        good = bad = 0
        with ExitStack() as stack:
            writers = {
                label: stack.enter_context(
                    writing_shard(self.storage, shard_file(job.keys[label], shard), self.keep[label])
                )
                for label in job.missing(self.storage, shard)
            }
            for images, skipped in read_in_order(reader, rows, batch=_BATCH, workers=self.recipe.run.workers):
                for label, writer in writers.items():
                    writer.add([image.row for image in images], self._features(label, images))
                good, bad = good + len(images), bad + len(skipped)
        return good, bad

    def _features(self, label: str, images: Sequence[PatchedImage]) -> list[TeacherFeatures]:
        return self.teachers.compute(self.teachers.names.index(label), images) if images else []

    def _announce(self, job: Job, reader: ImageReader, rows: np.ndarray) -> None:
        """Print the disk space that the features will take. InputError if there is not enough."""
        first = next(self._readable(reader, rows), None)
        if first is None:
            raise InputError(f"{job.dataset.url}: no readable image; check the dataset with `curate status`")
        sizes = {}
        sample = rows[:: max(1, len(rows) // _SAMPLE)]
        mean = float(reader.tokens(sample, np.zeros(len(sample), dtype=np.int64)).mean())
        native = {item.label for item in self.recipe.teachers if item.pictures == "student"}
        for label in job.keys:
            sizes[label] = features_bytes(self._features(label, [first])[0], mean if label in native else None)
        self._print_size(job, len(rows), sizes)

    def _print_size(self, job: Job, images: int, sizes: Mapping[str, float]) -> None:
        """sizes: bytes per image, by what they are of. InputError if there is not enough disk space."""
        total = sum(sizes.values()) * images
        each = ", ".join(f"{name} {size / 1e3:.1f} kB" for name, size in sizes.items())
        self._print(
            f"{job.dataset.url}: {images} images, per image {each}: {total / 1e9:.2f} GB in {self.storage.root}"
        )
        free = shutil.disk_usage(self.storage.root).free
        if total > _SPARE * free:
            raise InputError(
                f"run.teacher_cache: {total / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free in {self.storage.root}; "
                f"name a larger disk, set keep: float16 or weight 0 for patches, or train without a teacher_cache"
            )

    def _readable(self, reader: ImageReader, rows: np.ndarray) -> Iterator[PatchedImage]:
        for images, _ in read_in_order(reader, rows[:1000], batch=1, workers=1):
            yield from images

    def _print(self, text: str) -> None:
        if self.world.first:
            self.console.print(text, highlight=False, soft_wrap=True)
