"""Shared by the tests of evaluation: a model that recognises colours, images of discs, ranks as threads."""

from __future__ import annotations

import io
import pickle
import threading
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

from distill.context import StageContext
from distill.evaluation.datasets import HELD_OUT, EvaluationSet
from distill.evaluation.extraction import FeatureExtractor
from distill.evaluation.models import OWN, ModelOutput
from distill.evaluation.runs import evaluate_run
from distill.parallel import World
from distill.recipe import parse_recipe
from distill.samples.sources.mixture import open_mixture
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset

ALONE = World(0, 1, torch.device("cpu"))
VIT = {"encoder": "timm:vit_tiny_patch16_224?depth=2&embed_dim=32&num_heads=2&random=7&img_size=32", "name": "vit"}


def context(recipe) -> StageContext:
    return StageContext.of(recipe, open_mixture(recipe.data), ALONE)


def held_out_set(one: StageContext, **settings) -> EvaluationSet:
    own = one.recipe.evaluate.model_copy(update=settings)
    return EvaluationSet(HELD_OUT, one.dataset, one.test, own, one.recipe.seed)


def evaluated(recipe):
    one = context(recipe)
    return evaluate_run(one, one.new_student(), one.fit_standardisers())


def context_of(tmp_path, items, **values) -> StageContext:
    folder = write_dataset(tmp_path / "d", items)
    return context(parse_recipe(recipe_values(str(folder), str(tmp_path / "run")) | values, "test"))


class ColourModel:
    """Maps an image to its mean colour, and a text to the colour that it names."""

    name = "words"
    texts = {OWN: lambda texts: np.array([direction(text) for text in texts], dtype=np.float32)}

    def __call__(self, batch, targets):
        own = np.split(batch.patches, np.cumsum([rows * columns for rows, columns in batch.grids])[:-1])
        means = np.stack([1 - patches.reshape(-1, 3).mean(0) / 255 for patches in own]).astype(np.float32)
        patches = 1 - batch.patches.reshape(len(batch.patches), -1, 3).mean(1).astype(np.float32) / 255
        return ModelOutput(means, patches, {OWN: means})


COLOURS = {"red": (0, 1, 1), "green": (1, 0, 1), "blue": (1, 1, 0)}


def direction(text: str):
    """White minus the colour that a text names; grey for a text without a colour."""
    return next((values for colour, values in COLOURS.items() if colour in text), (1, 1, 1))


def disc_image(colour: str, number: int, *, alpha: bool = False):
    """A coloured disc on white, transparent outside the disc with `alpha`; and the mask of the disc."""
    rng = np.random.default_rng(number)
    rgb = {"red": (220, 20, 20), "green": (20, 180, 20), "blue": (20, 20, 220)}[colour]
    y, x = np.mgrid[:48, :48]
    disc = np.hypot(y - rng.uniform(16, 32), x - rng.uniform(16, 32)) < rng.uniform(9, 15)
    pixels = np.where(disc[..., None], rgb, 255).astype(np.uint8)
    image = Image.fromarray(np.dstack([pixels, 255 * disc.astype(np.uint8)]) if alpha else pixels)
    return image, disc


def encoded(image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def coloured_items(count, **kind):
    """Discs of three colours, which are their labels."""
    items = drawn_items(count)
    for number, item in enumerate(items):
        colour = list(COLOURS)[number % 3]
        item.data, item.width, item.height = encoded(disc_image(colour, number, **kind)[0]), 48, 48
        item.columns = {"label": colour, "duplicate_set": item.key}
    return items


def colour_extractor(one: StageContext) -> FeatureExtractor:
    return FeatureExtractor([ColourModel()], None, one.reader, ALONE)


class Threads:
    """Ranks as threads of this process, which synchronise at every gather."""

    def __init__(self, size: int) -> None:
        self.size, self.parts = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def world(self, rank: int):
        def gather(value):
            self.parts[rank] = pickle.dumps(value)
            self.barrier.wait()
            parts = [pickle.loads(part) for part in self.parts]
            self.barrier.wait()
            return parts

        def total(values):
            return values.copy_(sum(gather(values)))

        def numbers(values):
            return np.sum(gather(list(values)), axis=0).tolist()

        return SimpleNamespace(
            rank=rank, size=self.size, device=torch.device("cpu"), first=rank == 0, gather=gather, sum=total,
            numbers=numbers,
        )  # fmt: skip
