"""The data, teachers and student of a stage, for training and evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from curate.core.errors import InputError
from curate.core.hashing import key_words, make_key
from curate.encoders.student.config import HeadConfig
from curate.encoders.student.network.attention import attention_backend
from curate.encoders.student.network.pooler import FrozenPooler
from curate.encoders.student.network.student import Student, build_student
from curate.encoders.student.tokenizer import AnyTokenizer, Tokenizer
from distill.objectives.labels import Labels
from distill.objectives.outputs import MicroBatch, TeacherSpace, spaces_of
from distill.objectives.views import SECOND
from distill.parallel import World
from distill.recipe import Recipe
from distill.samples.batches.draws import lowest
from distill.samples.batches.loader import Batch, collate, read_in_order
from distill.samples.batches.stream import Stream, training_stream
from distill.samples.classes import ClassIndex, classes_of
from distill.samples.images.augment import augment
from distill.samples.images.reader import CacheBudget, ImageReader, PatchedImage, Skipped
from distill.samples.sources import split
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.members import OPEN_TARS
from distill.samples.sources.mixture import Mixture, as_mixture
from distill.samples.text_vectors import TextVectors
from distill.teachers import TargetStandardiser, Teachers, fit_standardisers
from distill.teachers.feature_cache import open_caches
from distill.teachers.text_cache import open_text_caches
from distill.training.initial import Taken, start_from

_STANDARDISE_SALT, _TOKENIZER_SALT, _CLASSES_SALT = 0x57A4, 0x70C3, 0xC1A5
_TOKENIZER_SAMPLES, _CLASS_SAMPLES, _CLASS_CHECK = 200_000, 1_000_000, 1000
_DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}


def held_out_rows(recipe: Recipe, dataset: Dataset | Mixture) -> np.ndarray:
    """Mask (n,) of the index rows that are held out."""
    mixture = as_mixture(dataset)
    test = split.held_out_rows(mixture, seed=recipe.seed, fraction=recipe.data.test_fraction)
    return test if mixture.chosen is None else test & mixture.chosen


def new_student(recipe: Recipe, heads: Sequence[HeadConfig]) -> Student:
    """The student before training, on the CPU; its weights depend on the recipe only. heads: of the teachers."""
    student = build_student(recipe.student, heads, recipe.seed)
    for objective in recipe.every_objective:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(make_key("heads", f"{recipe.seed}/{objective.label}")[:16], 16))
            objective.add_heads(student)
    return student


@dataclass
class StageContext:
    """Data, teachers and settings of a stage (`Recipe.staged`), in one process."""

    recipe: Recipe
    dataset: Mixture
    world: World
    teachers: Teachers
    reader: ImageReader
    test: np.ndarray
    """Mask (n,) of the rows that are held out."""
    tokenizer: AnyTokenizer | None = None
    """The text tower's tokenizer; CLIP's, or fitted, or read from the run's folder."""
    initial: Taken | None = None
    """What `new_student` has taken of the weights that the recipe starts from."""
    classes: dict[str, ClassIndex] = field(default_factory=dict)
    """Classes by the label of their objective; fitted, or read from the run's folder."""

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        dataset: Dataset | Mixture,
        world: World,
        *,
        tokenizer: AnyTokenizer | None = None,
        models: Teachers | None = None,
    ) -> StageContext:
        """models: teachers of an earlier stage; their models are reused, their cached features are not."""
        if recipe.run.threads:
            torch.set_num_threads(recipe.run.threads)
        mixture = as_mixture(dataset, recipe.data.sources)
        allowance, settings = CacheBudget(recipe.run.cache_bytes), recipe.data.augment
        cached: dict[str, Any] = {
            "allowance": allowance,
            "name": lambda row: f"image {mixture.value('key', row)}",
            "caches": open_caches(recipe, mixture),
            "text_caches": open_text_caches(recipe, mixture),
        }
        if models is None:
            teachers = Teachers.of(recipe, world.device, **cached)
        else:
            teachers = models.with_empty_cache(**cached)
        text = recipe.student.text
        vectors = None if text is None or text.column is None else TextVectors(mixture, text.column, text.width)
        reader = ImageReader(
            mixture,
            patch=recipe.student.patch,
            teachers=teachers if recipe.teachers else None,
            allowance=allowance,
            share=1 / world.size,
            open_tars=max(OPEN_TARS, 2 * recipe.data.lanes * recipe.data.window_shards),
            seed=recipe.seed,
            augment=None if settings is None else lambda image, random: augment(image, settings, random),
            two_crops=SECOND in recipe.needs.views,
            reads_text=recipe.reads_text,
            needs_text=recipe.reads_text,
            vectors=vectors,
            columns=recipe.needs.columns,
        )
        return cls(recipe, mixture, world, teachers, reader, held_out_rows(recipe, mixture), tokenizer)

    def new_student(self, *, filled: bool = False) -> Student:
        """The student before training; a recipe gives the same weights everywhere. filled: the caller replaces all of
        them, so `init_from` is not read."""
        recipe = self.recipe
        student = new_student(recipe, self.teachers.heads(recipe))
        if recipe.init_from is not None and not filled:
            self.initial = start_from(recipe, student, self.tokenizer)
        student.backbone.attention = attention_backend(recipe.run.attention, self.world.device, recipe.train.precision)
        return student.to(self.world.device, _DTYPES[recipe.train.precision])

    def autocast(self) -> AbstractContextManager[Any]:
        """The autocast context of training; a no-op unless the precision is bfloat16."""
        if self.recipe.train.precision == "bfloat16":
            return torch.autocast(self.world.device.type, torch.bfloat16)
        return nullcontext()

    def poolers(self) -> Mapping[str, FrozenPooler]:
        """Poolers of the teachers with `pooler: true`, by label; they compute the student's summary."""
        labels = [teacher.label for teacher in self.recipe.teachers if teacher.pooler]
        return {label: self.teachers.poolers()[label] for label in labels}

    def spaces(self, standardisers: Sequence[TargetStandardiser]) -> dict[str, TeacherSpace]:
        """The teachers' spaces by label, as objectives see them. standardisers: one per teacher."""
        return spaces_of(self.recipe, standardisers, self.poolers())

    def trained(self) -> np.ndarray:
        """Mask (n,) of the rows to train on: not held out, and of the natural sizes that their source is limited to."""
        eligible = self.dataset.eligible
        return ~self.test if eligible is None else ~self.test & eligible

    def stream(self) -> Stream:
        return training_stream(self.recipe, self.dataset, self.trained())

    def fit_tokenizer(self) -> Tokenizer:
        """Fitted on the texts of the training samples of lowest hash(seed, key).

        A collective: each rank reads a share of the texts, and all get the same tokenizer.
        """
        size = self.recipe.student.text
        assert size is not None
        rows = self._share(self._lowest(_TOKENIZER_SAMPLES, _TOKENIZER_SALT))
        own = self.reader.texts.read_all(rows, workers=self.recipe.run.workers)
        texts = [text for part in self.world.gather(own) for text in part]
        if not texts:
            raise InputError(
                "data.sources: no training sample has any of the `texts`; name members or JSON fields of the samples"
            )
        return Tokenizer.train(texts, size.vocabulary)

    def find_classes(self, known: Mapping[str, Sequence[str]]) -> None:
        """Set `classes`: the known names, or those of the recipe, or the most frequent labels of the training samples
        of lowest hash(seed, key). A collective: each rank reads a share of them.

        Raises InputError if there are more or fewer labels than classes, or none of the classes.
        """
        for item in (each for each in self.recipe.every_objective if isinstance(each, Labels)):
            ignore = item.outside == "ignore"
            if item.label in known:
                names = known[item.label]
            else:
                fitted = isinstance(item.classes, int)
                rows = self._share(self._lowest(_CLASS_SAMPLES if fitted else _CLASS_CHECK, _CLASSES_SALT))
                own = self.reader.texts.label_counts(rows, item.column, workers=self.recipe.run.workers)
                names = classes_of(
                    sum(self.world.gather(own), Counter[str]()), item.classes, item.column, ignore=ignore
                )
            self.classes[item.label] = ClassIndex(names, item.column, ignore=ignore)

    def _lowest(self, count: int, salt: int) -> np.ndarray:
        """The `count` training rows of lowest hash(seed, key), lowest first."""
        return lowest(self.dataset, self.trained(), count, seed=self.recipe.seed, salt=salt)

    def _share(self, rows: np.ndarray) -> np.ndarray:
        """This rank's part of the rows, in file order to read few tars."""
        return np.array_split(np.sort(rows), self.world.size)[self.world.rank]

    def fit_standardisers(self) -> list[TargetStandardiser]:
        """Fitted on the training images of lowest hash(seed, key). A collective: each rank reads a share of them."""
        if not self.recipe.teachers:
            return []
        rows, only = self._standardise_rows()
        batches = read_in_order(self.reader, self._share(rows), batch=64, workers=self.recipe.run.workers)
        return fit_standardisers(self.teachers, self.recipe.teachers, batches, self.world, only)

    def some_images(self, count: int) -> Iterator[tuple[list[PatchedImage], list[Skipped]]]:
        """The training images of lowest hash(seed, key), in batches: those that standardisation is fitted on first."""
        rows = np.sort(self._lowest(count, _STANDARDISE_SALT))
        return read_in_order(self.reader, rows, batch=64, workers=self.recipe.run.workers)

    def _standardise_rows(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Rows to read, and the rows of each kind of features that needs fewer."""
        samples = self.recipe.train.standardise_samples
        if isinstance(samples, int):
            return self._lowest(samples, _STANDARDISE_SALT), {}
        order = self._lowest(max(samples.values()), _STANDARDISE_SALT)
        images = {str(kind): count for kind, count in samples.items()}
        if "patches" in samples:
            patches = np.cumsum(self.reader.tokens(order))
            images["patches"] = int(np.searchsorted(patches, samples["patches"])) + 1
        most = max(images.values())
        return order[:most], {kind: order[:count] for kind, count in images.items() if count < most}

    def micro_batch(self, images: Sequence[PatchedImage]) -> MicroBatch:
        """The images, which may be none, and what else the objectives need."""
        batch = collate(images, self.recipe.student.patch)
        targets = dict(zip(self.teachers.names, self.teachers.targets(batch), strict=True))
        needs, draws = self.recipe.needs, self.reader.draws(batch.images)
        micro = MicroBatch(batch, targets, draws=draws, views=needs.views, classes=self.classes)
        if not needs.text_tower:
            return micro
        tokens = self.text_tokens(batch)
        each = 2 if self.recipe.data.paired else 1
        texts, rows = self._texts(batch), [image.row for image in batch.images for _ in range(each)]
        vectors = {label: self._like_texts(self.teachers.texts(label, texts, rows)) for label in needs.teacher_texts}
        return replace(micro, tokens=tokens, groups=self.groups(batch, tokens), teacher_texts=vectors)

    def _texts(self, batch: Batch) -> list[str]:
        """The texts of a batch, or both texts of each image with pairs of texts."""
        texts = [item or "" for item in batch.texts]
        if not self.recipe.data.paired:
            return texts
        pairs = zip(texts, batch.second_texts, strict=True)
        return [text for first, second in pairs for text in (first, second or first)]

    def _like_texts(self, rows: Tensor) -> Tensor:
        """Rows of `_texts` as (B, …), or (B, 2, …) with pairs of texts."""
        return rows.unflatten(0, (-1, 2)) if self.recipe.data.paired else rows

    def text_tokens(self, batch: Batch) -> Tensor:
        """Tokens (B, L) of the texts of a batch, or (B, 2, L) with pairs of texts; vectors (B, L) of a column."""
        text = self.recipe.student.text
        assert text is not None
        if not text.tokenizes:
            vectors = [image.vector for image in batch.images if image.vector is not None]
            return torch.from_numpy(np.reshape(vectors, (-1, text.width)).astype(np.float32)).to(self.world.device)
        if self.tokenizer is None:
            raise InputError("the run's folder has no tokenizer.json; train the recipe's student first")
        tokens = torch.from_numpy(self.tokenizer.encode(self._texts(batch), text.context)).to(self.world.device)
        return self._like_texts(tokens)

    def groups(self, batch: Batch, tokens: Tensor) -> Tensor:
        """Numbers (B, T + 1) of each sample's texts, as the text tower reads them, and of its duplicate set.

        An image and a text whose samples share a number are not negatives, see `same`. tokens: of `text_tokens`.
        """
        rows = tokens.flatten(0, -2).cpu().numpy()
        count = 1 if tokens.ndim == 2 else tokens.shape[1]
        known = [np.trim_zeros(row, "b") for row in rows]  # without padding; CLIP's is also a token within texts
        texts = key_words([make_key("text", row.tobytes().hex()) for row in known])
        sets = self.dataset.sets_of([image.row for image in batch.images])
        words = np.concatenate([texts[:, 0].reshape(-1, count), sets[:, :1]], axis=1) >> np.uint64(1)
        return torch.from_numpy(words.astype(np.int64)).to(self.world.device)
