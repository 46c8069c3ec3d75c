"""kNN accuracy of the student before and after training and of its teachers, across the split of duplicate sets.

Neighbours are training pictures, questions are held-out ones: no near-duplicate of a question is ever a neighbour, nor
was it trained on. Each key counts once, however many copies the dataset has. A test picture of a class with fewer than
`min_train_images` training pictures is left out, since no features could get it right; how many is always said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from curate.core.hashing import ranks
from distill.data.dataset import Dataset
from distill.data.loader import collate, read_in_order
from distill.data.pictures import Picture
from distill.evaluation.knn import knn_votes
from distill.evaluation.scores import accuracies
from distill.models.student import Student
from distill.recipe import EvaluateRecipe, Recipe
from distill.workbench import Workbench

_SALT = 0xE7A1
_BATCH = 64


@dataclass(frozen=True)
class Questions:
    """Rows of the index to learn from and to ask about, with labels (0..classes-1)."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    labels: dict[int, int]
    """By row."""
    classes: list[str]
    left_out_images: int
    left_out_classes: int


def choose(recipe: Recipe, dataset: Dataset, test: NDArray[np.bool_]) -> Questions | str:
    """The questions, or in words why there are none. test (n,): the rows held out."""
    evaluate = recipe.evaluate
    if not dataset.has(evaluate.label):
        return f"the index has no column {evaluate.label!r}; carry one into the dataset or set evaluate.label"
    names = dataset.strings(evaluate.label)
    keys = np.asarray(dataset.strings("key"), dtype=object)
    first = np.zeros(len(keys), dtype=bool)
    first[np.unique(keys, return_index=True)[1]] = True
    usable = np.flatnonzero(first & np.array([bool(name) for name in names]))
    usable = usable[np.argsort(ranks(recipe.seed, keys[usable], _SALT), kind="stable")]
    train = np.sort(usable[~test[usable]][: evaluate.max_train_images])
    asked = np.sort(usable[test[usable]][: evaluate.max_test_images])
    known = Counter(names[row] for row in train)
    kept = np.array([known[names[row]] >= evaluate.min_train_images for row in asked], dtype=bool)
    if not kept.any():
        return f"no held-out picture has a {evaluate.label!r} with {evaluate.min_train_images} training pictures"
    left_out = asked[~kept]
    classes = sorted({str(names[row]) for row in train})
    number = {name: place for place, name in enumerate(classes)}
    labels = {int(row): number[str(names[row])] for row in [*train, *asked[kept]]}
    return Questions(train, asked[kept], labels, classes, len(left_out), len({names[row] for row in left_out}))


def evaluate(bench: Workbench, students: dict[str, Student]) -> dict[str, Any]:
    """What evaluation.json holds (the same on every rank): counts, baselines and accuracies of each model.

    students: by the name to print. The teachers are added. Features are the summaries: the student's CLS (not its
    projection into a teacher's space), a teacher's own, before standardisation.
    """
    questions = choose(bench.recipe, bench.dataset, bench.test)
    settings = bench.recipe.evaluate.model_dump()
    if isinstance(questions, str):
        return {"settings": settings, "models": {}, "why_none": questions}
    rows = np.concatenate([questions.train, questions.test])
    features = _features(bench, students, rows)
    readable = {row for name in list(features)[:1] for row in features[name]}
    train, test = ([int(row) for row in part if row in readable] for part in (questions.train, questions.test))
    if not train or not test:
        why = f"only {len(train)} training and {len(test)} held-out pictures can be read"
        return {"settings": settings, "models": {}, "why_none": why}
    models = {
        name: _score(questions, {row: found[row] for row in readable}, train, test, bench.recipe.evaluate)
        for name, found in features.items()
    }
    return {"settings": settings, **_baselines(questions, train, test), "models": models}


def _features(
    bench: Workbench, students: dict[str, Student], rows: NDArray[np.int64]
) -> dict[str, dict[int, NDArray[np.float32]]]:
    """By model and row; rows that cannot be read are absent. Ranks share the work and all get the result."""
    world = bench.world
    found: dict[str, dict[int, NDArray[np.float32]]] = {name: {} for name in [*students, *bench.teachers.names]}
    read = read_in_order(bench.pictures, rows[world.rank :: world.size], batch=_BATCH, workers=bench.recipe.run.workers)
    for pictures, _ in read:
        if not pictures:
            continue
        for name, student in students.items():
            found[name].update(student_summaries(student, pictures))
        for name, target in zip(bench.teachers.names, bench.teachers.targets(pictures), strict=True):
            found[name].update(zip((item.row for item in pictures), target.summary.numpy(), strict=True))
    parts = world.gather(found)
    return {name: {row: value for part in parts for row, value in part[name].items()} for name in found}


@torch.no_grad()
def student_summaries(student: Student, pictures: Sequence[Picture]) -> dict[int, NDArray[np.float32]]:
    """CLS of each picture, by row."""
    batch = collate(pictures)
    output = student(torch.from_numpy(batch.patches).to(student.backbone.prefix.device), batch.grids)
    summaries = output.summary.float().cpu().numpy()
    return dict(zip((picture.row for picture in batch.pictures), summaries, strict=True))


def _score(
    questions: Questions,
    features: dict[int, NDArray[np.float32]],
    train: list[int],
    test: list[int],
    recipe: EvaluateRecipe,
) -> dict[str, float]:
    answers = np.array([questions.labels[row] for row in test])
    votes = knn_votes(
        np.stack([features[row] for row in train]),
        np.array([questions.labels[row] for row in train]),
        np.stack([features[row] for row in test]),
        classes=len(questions.classes),
        k=recipe.k,
        temperature=recipe.temperature,
    )
    return accuracies(votes, answers)


def _baselines(questions: Questions, train: list[int], test: list[int]) -> dict[str, Any]:
    answers = [questions.labels[row] for row in test]
    majority = Counter(questions.labels[row] for row in train).most_common(1)[0][0]
    asked = len(set(answers))
    return {
        "train_images": len(train),
        "test_images": len(test),
        "classes": len(questions.classes),
        "test_classes": asked,
        "left_out_images": questions.left_out_images,
        "left_out_classes": questions.left_out_classes,
        "chance": 1 / len(questions.classes),
        "majority": sum(answer == majority for answer in answers) / len(answers),
    }
