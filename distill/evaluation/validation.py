"""Accuracies of a student while it is trained: kNN and zero-shot, of some held-out images and of `evaluate.datasets`.

Training must not notice: images have a reader and no cache, the student's mode and attention are restored, and no
random number is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from curate.encoders.student.network.student import Student
from distill.context import StageContext
from distill.evaluation.datasets import HELD_OUT, EvaluationSet, open_set
from distill.evaluation.evaluate import evaluate_set
from distill.evaluation.extraction import FeatureExtractor, raise_on_all_ranks, reader_of
from distill.evaluation.models import StudentModel, text_encoder
from distill.evaluation.show import AFTER
from distill.recipe.evaluate import Task

PREFIX = "validation/"
_TASKS: tuple[Task, ...] = ("knn", "zero_shot")


class Validation:
    """Opens the sets of a stage once. A collective of all ranks, as are its calls."""

    def __init__(self, context: StageContext, stopped: Callable[[], bool], say: Callable[[str], None]) -> None:
        """stopped: whether this rank shall stop at once; say: prints why there is nothing to compute."""
        recipe, given = context.recipe, context.recipe.evaluate
        settings = given.model_copy(
            update={
                "tasks": [task for task in _TASKS if task in given.tasks],
                "max_train_images": min(given.every_images, given.max_train_images),
                "max_test_images": min(given.every_images, given.max_test_images),
            }
        )
        self._told = False
        workers, self._context, self._stopped, self._say = recipe.run.workers, context, stopped, say
        sets = [EvaluationSet(HELD_OUT, context.dataset, context.test, settings, recipe.seed, workers)]
        for item in given.datasets:
            opened = partial(
                open_set, item, settings, max_tokens=recipe.data.max_tokens, seed=recipe.seed, workers=workers
            )
            sets.append(raise_on_all_ranks(context.world, opened))
        self._sets = [sized for data in sets for sized in data.at_sizes()]

    def __call__(self, student: Student) -> dict[str, float]:
        """Accuracies by name. Raises StoppedError on all ranks if one of them is stopped."""
        context, found, missing = self._context, dict[str, float](), list[str]()
        tower = None
        if student.text is not None and context.tokenizer is not None:
            tower = text_encoder(student, context.tokenizer, student.text.config.context)
        model = StudentModel(AFTER, student, tower=tower)
        with _in_evaluation(student):
            for data in self._sets:
                reader = reader_of(data, context.recipe.student.patch, None, whole=context.teachers.prepares)
                extractor = FeatureExtractor([model], None, reader, context.world, data.workers, self._stopped)
                result = evaluate_set(extractor, data).result
                for task in data.settings.tasks:
                    for own in result[task]["models"].values():
                        found[f"{PREFIX}{data.title}/{task}"] = own["accuracy"]
                    missing += [result[task]["why_none"]] if not result[task]["models"] else []
        if not found and not self._told:
            self._told = True
            self._say(f"evaluate.every: nothing to compute: {'; '.join(dict.fromkeys(missing)) or 'no task'}")
        return found


@contextmanager
def _in_evaluation(student: Student) -> Iterator[None]:
    """Evaluation mode, in float32, which `varlen` attention does not support."""
    training, attention = student.training, student.backbone.attention
    student.backbone.attention = "auto" if attention == "varlen" else attention
    student.eval()
    try:
        yield
    finally:
        student.train(training)
        student.backbone.attention = attention


def curves(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """(step, accuracy) by set and task, from the lines of metrics.jsonl."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith(PREFIX):
                found.setdefault(name.removeprefix(PREFIX), []).append((int(line["step"]), float(value)))
    return found
