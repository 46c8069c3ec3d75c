"""What training and evaluation share: the dataset's split, its pictures, the teachers, and one cache for both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from curate.core.hashing import ranks
from curate.encoders import load
from distill.data.dataset import Dataset
from distill.data.loader import read_in_order
from distill.data.pictures import Allowance, Pictures
from distill.data.split import held_out
from distill.data.stream import Packing, Stream
from distill.models.student import Student, build_student
from distill.models.vit import VitConfig
from distill.parallel import World
from distill.recipe import Recipe
from distill.teachers import Standards, Teachers, fit_standards

_STANDARDISE_SALT = 0x57A4
_DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}


def held_out_rows(recipe: Recipe, dataset: Dataset) -> np.ndarray:
    """True (n,) for the rows of the index that are held out."""
    sets = dataset.strings("duplicate_set") if dataset.has("duplicate_set") else None
    keys = [str(key) for key in dataset.strings("key")]
    return held_out(keys, sets, seed=recipe.seed, fraction=recipe.data.test_fraction)


@dataclass
class Workbench:
    """Built once per process; `test` (n,) is True for the rows of the index that are never trained on."""

    recipe: Recipe
    dataset: Dataset
    world: World
    teachers: Teachers
    pictures: Pictures
    test: np.ndarray

    @classmethod
    def of(cls, recipe: Recipe, dataset: Dataset, world: World) -> Workbench:
        if recipe.run.threads:
            torch.set_num_threads(recipe.run.threads)
        allowance = Allowance(recipe.run.cache_bytes)
        encoders = {
            item.encoder: load(item.encoder, device=str(world.device), precision=item.precision)
            for item in recipe.teachers
        }
        teachers = Teachers(encoders, allowance=allowance)
        pictures = Pictures(
            dataset,
            patch=recipe.student.patch,
            max_tokens=recipe.data.max_tokens,
            teachers=teachers,
            allowance=allowance,
            share=1 / world.size,
        )
        return cls(recipe, dataset, world, teachers, pictures, held_out_rows(recipe, dataset))

    def new_student(self) -> Student:
        """As it is before training: the same weights for a recipe, wherever it is built."""
        size = self.recipe.student
        config = VitConfig(
            patch=size.patch,
            width=size.width,
            depth=size.depth,
            heads=size.heads,
            mlp_ratio=size.mlp_ratio,
            registers=size.registers,
        )
        student = build_student(config, self.teachers.heads(size.head_hidden), self.recipe.seed)
        return student.to(self.world.device, _DTYPES[self.recipe.train.precision])

    def stream(self) -> Stream:
        data = self.recipe.data
        rows = np.flatnonzero(~self.test)
        packing = Packing(data.sequence_tokens, data.sequence_images, data.lookahead, data.lanes, data.window_shards)
        tokens = self.pictures.patch_tokens[rows] + 1 + self.recipe.student.registers
        sequences = self.recipe.train.sequences
        return Stream(self.dataset, rows, seed=self.recipe.seed, sequences=sequences, tokens=tokens, packing=packing)

    def standards(self) -> list[Standards]:
        """Fitted on the training pictures of lowest hash(seed, key), a share of them by each rank."""
        rows = np.flatnonzero(~self.test)
        keys = np.asarray(self.dataset.strings("key"), dtype=object)[rows]
        order = np.argsort(ranks(self.recipe.seed, keys, _STANDARDISE_SALT), kind="stable")
        chosen = rows[order[: self.recipe.train.standardise_samples]][self.world.rank :: self.world.size]
        read = read_in_order(self.pictures, chosen, batch=64, workers=self.recipe.run.workers)
        heads = self.teachers.heads(self.recipe.student.head_hidden)
        return fit_standards(self.teachers, (good for good, _ in read), heads, self.world)
