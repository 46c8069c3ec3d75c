"""What training and evaluation share: the split of the data, its pictures and texts, the teachers, one cache."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from curate.core.errors import InputError
from curate.core.hashing import key_words, make_key
from distill.models.attention import attention_backend
from distill.models.student import Student, StudentConfig, build_student
from distill.models.tokenizer import PAD, Tokenizer
from distill.recipe import Recipe
from distill.samples.batches.draws import lowest
from distill.samples.batches.loader import Batch, read_in_order
from distill.samples.batches.stream import Packing, Stream
from distill.samples.images.augment import augment
from distill.samples.images.images import Allowance, Pictures
from distill.samples.sources import split
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.members import OPEN_TARS
from distill.samples.sources.mixture import Blend, as_blend
from distill.teachers import Standards, Teachers, fit_standards
from distill.teachers.columns import open_columns
from distill.training.parallel import World

_STANDARDISE_SALT, _TOKENIZER_SALT = 0x57A4, 0x70C3
_TOKENIZER_SAMPLES = 200_000
_DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}


def held_out_rows(recipe: Recipe, dataset: Dataset | Blend) -> np.ndarray:
    """True (n,) for the rows of the index that are held out."""
    return split.held_out_rows(as_blend(dataset), seed=recipe.seed, fraction=recipe.data.test_fraction)


@dataclass
class Workbench:
    """Of one stage (`Recipe.staged`), once per process; `test` (n,) is True for rows that are never trained on."""

    recipe: Recipe
    dataset: Blend
    world: World
    teachers: Teachers
    pictures: Pictures
    test: np.ndarray
    tokenizer: Tokenizer | None = None
    """Of the text tower: fitted, or read from the run's folder, before a student is made."""

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        dataset: Dataset | Blend,
        world: World,
        *,
        tokenizer: Tokenizer | None = None,
        models: Teachers | None = None,
    ) -> Workbench:
        """models: the teachers of an earlier stage, whose models are taken over, and nothing else."""
        if recipe.run.threads:
            torch.set_num_threads(recipe.run.threads)
        blend = as_blend(dataset, recipe.data.sources)
        allowance, how = Allowance(recipe.run.cache_bytes), recipe.data.augment
        name, columns = (lambda row: f"picture {blend.value('key', row)}"), open_columns(recipe, blend)
        if models is None:
            teachers = Teachers.of(recipe, world.device, allowance=allowance, name=name, columns=columns)
        else:
            teachers = models.again(allowance=allowance, name=name, columns=columns)
        pictures = Pictures(
            blend,
            patch=recipe.student.patch,
            teachers=teachers if recipe.teachers else None,
            allowance=allowance,
            share=1 / world.size,
            open_tars=max(OPEN_TARS, 2 * recipe.data.lanes * recipe.data.window_shards),
            seed=recipe.seed,
            augment=None if how is None else lambda image, random: augment(image, how, random),
            reads_text=recipe.contrastive is not None,
            needs_text=recipe.contrastive is not None,
        )
        return cls(recipe, blend, world, teachers, pictures, held_out_rows(recipe, blend), tokenizer)

    def new_student(self) -> Student:
        """As it is before training: the same weights for a recipe, wherever it is built."""
        recipe = self.recipe
        temperature = {} if recipe.contrastive is None else {"temperature": recipe.contrastive.temperature}
        config = StudentConfig.of(recipe.student, **temperature)
        student = build_student(config, self.teachers.heads(recipe), recipe.seed)
        student.backbone.attention = attention_backend(recipe.run.attention, self.world.device, recipe.train.precision)
        return student.to(self.world.device, _DTYPES[recipe.train.precision])

    def autocast(self) -> AbstractContextManager[Any]:
        """Under which the student is trained."""
        if self.recipe.train.precision == "bfloat16":
            return torch.autocast(self.world.device.type, torch.bfloat16)
        return nullcontext()

    def poolers(self) -> Mapping[str, Any]:
        """Of the teachers whose own pooler makes the student's summary."""
        wanted = [teacher.label for teacher in self.recipe.teachers if teacher.pooler]
        return {name: self.teachers.poolers()[name] for name in wanted}

    def stream(self) -> Stream:
        data, prefix = self.recipe.data, 1 + self.recipe.student.registers
        packing = Packing(data.sequence_tokens, data.sequence_images, data.lookahead, data.lanes, data.window_shards)
        return Stream(
            self.dataset,
            ~self.test,
            seed=self.recipe.seed,
            sequences=self.recipe.train.sequences,
            tokens=lambda rows, epochs: self.pictures.tokens(rows, epochs) + prefix,
            packing=packing,
        )

    def fitted_tokenizer(self) -> Tokenizer:
        """Learned from the texts of the training samples of lowest hash(seed, key): all that a picture may be given.

        A collective: each rank reads a share of the texts, and all find the same.
        """
        size = self.recipe.student.text
        assert size is not None
        own = self._share(_TOKENIZER_SAMPLES, _TOKENIZER_SALT)
        found = self.pictures.texts.of(own, workers=self.recipe.run.workers)
        texts = [text for part in self.world.gather(found) for text in part]
        if not texts:
            raise InputError(
                "data.sources: no training sample has one of the `texts`; name members or json fields of it"
            )
        return Tokenizer.train(texts, size.vocabulary)

    def _share(self, count: int, salt: int) -> np.ndarray:
        """This rank's part of the training rows of lowest hash(seed, key), as they lie: parts touch few tars."""
        chosen = np.sort(lowest(self.dataset, ~self.test, count, seed=self.recipe.seed, salt=salt))
        return np.array_split(chosen, self.world.size)[self.world.rank]

    def standards(self) -> list[Standards]:
        """Fitted on the training pictures of lowest hash(seed, key), a share of them by each rank."""
        if not self.recipe.teachers:
            return []
        own = self._share(self.recipe.train.standardise_samples, _STANDARDISE_SALT)
        read = read_in_order(self.pictures, own, batch=64, workers=self.recipe.run.workers)
        return fit_standards(self.teachers, self.recipe.teachers, read, self.world)

    def tokens(self, batch: Batch) -> Tensor | None:
        """(B, L) of the texts that go with pictures; None without a text tower."""
        text = self.recipe.student.text
        if text is None or self.recipe.contrastive is None:
            return None
        if self.tokenizer is None:
            raise InputError("the run's folder has no tokenizer.json; train the recipe's student first")
        tokens = self.tokenizer.encode([item or "" for item in batch.texts], text.context)
        return torch.from_numpy(tokens).to(self.world.device)

    def groups(self, batch: Batch, tokens: Tensor) -> Tensor:
        """(B, 2) numbers of a picture's text, as the text tower reads it, and of its duplicate set: samples that share
        one are no negatives of each other. tokens: (B, L) of the texts."""
        said = [make_key("text", str([token for token in row if token != PAD])) for row in tokens.tolist()]
        shown = self.dataset.sets_of([picture.row for picture in batch.pictures])
        words = np.stack([pairs[:, 0] >> np.uint64(1) for pairs in (key_words(said), shown)], axis=1)
        return torch.from_numpy(words.astype(np.int64)).to(self.world.device)
