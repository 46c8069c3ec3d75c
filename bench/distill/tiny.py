"""Figures of `tiny`'s model card: results on held-out images, next to those of `descriptor` and of chance.

`python -m bench.distill.tiny --dataset FOLDER [--encoder tiny]`; FOLDER is the dataset of pipelines/tiny.yaml. The
test images are the duplicate sets that `distill train tiny` never trains on. CIFAR-10 and photographs of ImageNet (one
per class) come from the folder next to the checkout (CURATE_SHARED); they are left out if it is missing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, ImageOps

from bench.kit.features import shared
from bench.kit.measure import line
from curate.codec.images import decode
from curate.core.errors import InputError
from curate.encoders import Encoder, load
from distill.evaluation.tasks.knn import knn_votes, unit
from distill.evaluation.tasks.prompts import read_templates
from distill.evaluation.tasks.retrieval import recalls, unique_texts
from distill.evaluation.tasks.zero_shot import class_scores, class_vectors
from distill.recipe import AugmentRecipe, Recipe, load_recipe
from distill.samples.batches.draws import Draws
from distill.samples.images.augment import augment
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import as_mixture
from distill.samples.sources.split import held_out
from distill.samples.texts import Texts

BATCH = 256
CLIP_ARTS = "openclipart/"
ALTERED = AugmentRecipe(crop=(0.5, 0.8), aspect=1.2, colour=0.2)
BASELINE = "descriptor"
LEAST = 5
"""Minimum number of training images in a folder whose images are tested."""

Vectors = NDArray[np.float32]


@dataclass
class Corpus:
    """The dataset of a recipe, and its held-out rows."""

    place: str
    recipe: Recipe

    def __post_init__(self) -> None:
        self.dataset = open_dataset(self.place)
        mixture = as_mixture(self.dataset, self.recipe.data.sources)
        self._members = MemberReader(mixture)
        self._texts = Texts(mixture, self._members, Draws(mixture, 0))
        self.labels = np.array([label or "" for label in self.dataset.strings("label")])
        self.clip_art = np.array([str(name).startswith(CLIP_ARTS) for name in self.dataset.strings("source_id")])

    @cached_property
    def test(self) -> NDArray[np.bool_]:
        keys = [str(key) for key in self.dataset.strings("key")]
        sets = self.dataset.strings("duplicate_set")
        return held_out(keys, sets, seed=self.recipe.seed, fraction=self.recipe.data.test_fraction)

    def image(self, row: int) -> Image.Image:
        return decode(self._members.read(row))

    def title(self, row: int) -> str:
        return next((texts[0] for texts in self._texts.read(row).values()), "")


def summaries(encoder: Encoder, images: Iterable[Image.Image]) -> Vectors:
    """Summaries (n, D) of unit length."""
    found: list[Vectors] = []
    held: list[Any] = []
    for image in images:
        held.append(encoder.prepare(image))
        if len(held) == BATCH:
            found.append(encoder.encode(held, patches=False).summary)
            held = []
    if held:
        found.append(encoder.encode(held, patches=False).summary)
    return unit(np.concatenate(found))


def share(right: NDArray[np.bool_]) -> str:
    return f"{100 * right.mean():.1f} %"


def clip_arts(corpus: Corpus, encoder: Encoder, baseline: Encoder) -> None:
    """Held-out clip-arts against their titles, their folders and altered copies of themselves."""
    test = np.flatnonzero(corpus.test & corpus.clip_art).tolist()
    train = np.flatnonzero(~corpus.test & corpus.clip_art)
    own, other = (summaries(model, map(corpus.image, test)) for model in (encoder, baseline))
    titles(corpus, encoder, test, own)
    counts = dict(zip(*np.unique(corpus.labels[train], return_counts=True), strict=True))
    tested = np.array([counts.get(label, 0) >= LEAST for label in corpus.labels[test]])
    classes = sorted({label for label, count in counts.items() if count >= LEAST})
    answers = np.array([classes.index(label) for label in corpus.labels[test][tested]])
    known = np.isin(corpus.labels[train], classes)
    train_labels = np.array([classes.index(label) for label in corpus.labels[train][known]])
    note = f"{len(classes)} folders, {tested.sum():,} images"
    names = [[" ".join(reversed(label.replace("_", " ").split("/")))] for label in classes]
    scores = class_scores(own[tested], class_vectors(encoder.encode_text, names, read_templates()))
    line("folder, zero-shot", share(scores.argmax(1) == answers), f"{note}, chance {100 / len(classes):.1f} %")
    for name, model, features in ((encoder.spec, encoder, own), (BASELINE, baseline, other)):
        neighbours = summaries(model, map(corpus.image, train[known].tolist()))
        votes = knn_votes(neighbours, train_labels, features[tested], classes=len(classes), k=20, temperature=0.07)
        line(f"folder, 20 nearest neighbours, {name}", share(votes.argmax(1) == answers), note)
    for name, model, features in ((encoder.spec, encoder, own), (BASELINE, baseline, other)):
        random = np.random.default_rng(0)
        copies = summaries(model, (augment(corpus.image(row), ALTERED, random) for row in test))
        nearest = (copies @ features.T).argmax(1)
        line(f"altered copy -> original, {name}", share(nearest == np.arange(len(test))), f"among {len(test):,}")


def titles(corpus: Corpus, encoder: Encoder, rows: Sequence[int], images: Vectors) -> None:
    all_titles = [corpus.title(row).lower() for row in rows]
    named = np.flatnonzero([bool(text) for text in all_titles])
    texts, pairs = unique_texts([[all_titles[place]] for place in named])
    words = unit(encoder.encode_text(texts))
    found = recalls(images[named], words, pairs)
    among = f"{len(named):,} images, {len(texts):,} titles"
    for name, values in found.items():
        got = ", ".join(f"{k} {100 * value:.1f} %" for k, value in values.items())
        line(f"title, {name.replace('_', ' ')}", got, among)
    similarity = images[named] @ words.T
    true = similarity[np.arange(len(named)), pairs[:, 1]]
    order = np.random.default_rng(0).permutation(len(named))
    different = pairs[order, 1] != pairs[:, 1]
    false = similarity[np.arange(len(named)), pairs[order, 1]][different]
    area = (true[:, None] > false).mean() + (true[:, None] == false).mean() / 2
    line("own title above another's (area under the ROC)", f"{area:.3f}", "chance 0.500")


def cifar(encoder: Encoder) -> None:
    path = shared() / "data" / "cifar10-test.parquet"
    if not path.is_file():
        return line("CIFAR-10", "left out", f"{path} is missing; set CURATE_SHARED to the folder that contains data/")
    table = pq.read_table(path)
    labels = table.column("label").to_pylist()
    classes = sorted(set(labels))
    answers = np.array([classes.index(label) for label in labels])
    words = class_vectors(encoder.encode_text, [[name] for name in classes], read_templates())
    images = [decode(data) for data in table.column("image").to_pylist()]
    for side in (32, 96):
        larger = images if side == 32 else [image.resize((side, side), Image.Resampling.BICUBIC) for image in images]
        scores = class_scores(summaries(encoder, larger), words)
        right = scores.argmax(1) == answers
        best = ", ".join(f"{name} {100 * right[answers == n].mean():.0f}" for n, name in enumerate(classes))
        line(f"CIFAR-10 test, zero-shot, {side} pixels", share(right), f"chance 10 %; {best}")
    return None


def imagenet(encoder: Encoder) -> None:
    path = shared() / "data" / "imagenet-sample-1000.parquet"
    if not path.is_file():
        return line("ImageNet", "left out", f"{path} is missing; set CURATE_SHARED to the folder that contains data/")
    table = pq.read_table(path)
    names = [[part.strip() for part in name.split(",")] for name in table.column("name").to_pylist()]
    classes = [list(own) for own in dict.fromkeys(map(tuple, names))]
    answers = np.array([classes.index(name) for name in names])
    words = class_vectors(encoder.encode_text, classes, read_templates())
    scores = class_scores(summaries(encoder, (decode(data) for data in table.column("image").to_pylist())), words)
    rank = (scores > np.take_along_axis(scores, answers[:, None], 1)).sum(1)
    note = f"{len(names):,} photographs of {len(classes):,} classes, chance {100 / len(classes):.1f} %"
    line("ImageNet sample, zero-shot, top 1", share(rank < 1), note)
    line("ImageNet sample, zero-shot, top 5", share(rank < 5), f"chance {500 / len(classes):.1f} %")
    return None


def speed(encoder: Encoder) -> None:
    images = [ImageOps.pad(Image.new("RGB", (96, 128), (at, 99, 200)), (128, 128)) for at in range(128)]
    held = [encoder.prepare(image) for image in images]
    times = []
    for _ in range(4):
        began = time.process_time()
        encoder.encode(held, patches=False)
        times.append(time.process_time() - began)
    line("images of 128 x 128 per second of one core", f"{len(held) / min(times):.0f}", encoder.spec)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dataset", default="workspace/datasets/tiny", help="dataset of pipelines/tiny.yaml")
    parser.add_argument("--encoder", default="tiny", help="tiny, or distill:FOLDER")
    given = parser.parse_args(arguments if arguments is not None else [])
    encoder, baseline = (load(spec, device="cpu") for spec in (given.encoder, BASELINE))
    speed(encoder)
    try:
        clip_arts(Corpus(given.dataset, load_recipe("tiny")), encoder, baseline)
    except InputError as error:
        line("held-out clip-arts", "left out", str(error))
    cifar(encoder)
    imagenet(encoder)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
