"""Everything that is asked of some models about one set of pictures: what evaluation.json and the page are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.judged import Judged, Questions
from distill.evaluation.subjects import StudentSubject
from distill.evaluation.tasks import tasks
from distill.evaluation.tasks.alignment import align
from distill.evaluation.tasks.maps import colours, png
from distill.evaluation.tasks.probe import mean_iou
from distill.evaluation.tasks.scores import check_finite
from distill.evaluation.tasks.segmentation import Examiner, Learner, names_of
from distill.evaluation.watchers import Fidelity, Models, Patches, Vectors, Watcher
from distill.recipe import EvaluateRecipe
from distill.samples.images.images import Pictures

Result = dict[str, Any]
_VECTOR_TASKS = {"knn", "probe", "zero_shot", "retrieval"}


@dataclass
class Findings:
    """Of one set of pictures."""

    result: Result
    """JSON-able."""
    maps: list[tuple[str, list[bytes]]] = field(default_factory=list)
    """Columns of the drawing: what it shows, and a PNG per picture."""


def judge(models: Models, judged: Judged) -> Findings:
    """All tasks of the settings on one set; the same on every rank."""
    settings, wanted = judged.settings, set(judged.settings.tasks)
    test = judged.rows(test=True, most=settings.max_test_images)
    counts = {"test": len(test), "train": int((~judged.test).sum()), "skipped": {}}
    found = Findings({"name": judged.name, "url": judged.blend.url, "counts": counts})
    if not len(test):
        return _nothing(
            found, settings, f"no picture is asked about: of {counts['train']}, none is held out; raise "
            f"data.test_fraction, or the set's own test_fraction (1: all are asked about, none is learnt from)"
        )  # fmt: skip
    questions: Questions | str = judged.questions() if wanted & {"knn", "probe", "zero_shot"} else "not asked"
    vectors, learner = _learn(models, judged, questions, wanted)
    fidelity, examiner = _examine(models, judged, questions, vectors, learner, found, test)
    if vectors.rows.isdisjoint(test.tolist()):
        reasons = ", ".join(f"{why} {count}" for why, count in found.result["counts"]["skipped"].items())
        return _nothing(found, settings, f"no picture that is asked about can be read ({reasons}); look at the files")
    for (name, space), own in vectors.found.items():
        check_finite(f"{name}{f' as {space}' if space else ''}, on {judged.name}", np.stack(list(own.values())))
    found.result |= _vector_tasks(models, judged, questions, vectors, wanted, test)
    if "segmentation" in wanted:
        found.result["segmentation"] = _segmentation(settings, learner, examiner)
    if "fidelity" in wanted:
        found.result["fidelity"] = _fidelity(fidelity)
    if "cka" in wanted:
        found.result["cka"] = _cka(models, judged, settings)
    if "maps" in wanted:
        found.result["maps"], found.maps = _maps(models, judged, settings)
    return found


def _nothing(found: Findings, settings: EvaluateRecipe, why: str) -> Findings:
    """The same answer to every task."""
    found.result |= {task: tasks.none(why) for task in settings.tasks}
    return found


def _learn(
    models: Models, judged: Judged, questions: Questions | str, wanted: set[str]
) -> tuple[Vectors, Learner | None]:
    """Look at the pictures that neighbours and probes learn from."""
    vectors = Vectors()
    learner = None
    rows: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    if wanted & {"knn", "probe"} and isinstance(questions, Questions):
        models.watch(questions.train, [vectors])
    if "segmentation" in wanted and judged.settings.masks is not None:
        learner = Learner(judged, models.pictures.patch)
        rows = [judged.rows(test=False, most=judged.settings.max_mask_images)]
        models.watch(np.concatenate(rows), [learner])
    return vectors, learner


def _examine(
    models: Models,
    judged: Judged,
    questions: Questions | str,
    vectors: Vectors,
    learner: Learner | None,
    found: Findings,
    test: NDArray[np.int64],
) -> tuple[Fidelity, Examiner | None]:
    """Look at the pictures that are asked about."""
    fidelity, examiner = Fidelity(), None
    masks = test[:0]
    if learner is not None and learner.sums and learner.rows:
        examiner = Examiner(judged, models.pictures.patch, learner.probes())
        masks = test[: judged.settings.max_mask_images]
    watchers: list[Watcher] = [vectors, fidelity]
    own = test if isinstance(questions, str) else np.union1d(test, np.union1d(questions.test, questions.left_out))
    skipped = models.watch(np.setdiff1d(own, masks), watchers)
    skipped += models.watch(masks, [*watchers, *([examiner] if examiner is not None else [])])
    found.result["counts"]["skipped"] = dict(skipped)
    return fidelity, examiner


def _vector_tasks(
    models: Models,
    judged: Judged,
    questions: Questions | str,
    vectors: Vectors,
    wanted: set[str],
    test: NDArray[np.int64],
) -> Result:
    found: Result = {}
    kinds = {"knn": tasks.knn, "probe": tasks.linear_probe, "zero_shot": tasks.zero_shot}
    for name, task in kinds.items():
        if name not in wanted:
            continue
        if isinstance(questions, str):
            found[name] = tasks.none(questions)
        else:
            found[name] = task(tasks.Asked(questions, vectors, models.subjects, judged.settings))
    if "retrieval" in wanted:
        found["retrieval"] = tasks.retrieval(judged, vectors, models.subjects, test)
    return found


def _segmentation(settings: EvaluateRecipe, learner: Learner | None, examiner: Examiner | None) -> Result:
    if settings.masks is None:
        return tasks.none("no masks are named; set evaluate.masks to a member (seg.png), or to alpha")
    if learner is None or not learner.rows or examiner is None or not examiner.rows:
        sides = [(learner, "training"), (examiner, "test")]
        left = [(side, one.left_out.most_common()) for one, side in sides if one is not None]
        said = "; ".join(f"{side}: {', '.join(f'{why} {count}' for why, count in own) or 'all'}" for side, own in left)
        return tasks.none(f"no picture has a mask ({settings.masks}) on both sides ({said})")
    if not any(pixels.any() for pixels in examiner.pixels.values()):
        return tasks.none(f"no pixel of the test masks ({settings.masks}) is of a class that a training picture has")
    models, classes = {}, 0
    for name, pixels in examiner.pixels.items():
        mean, each = mean_iou(pixels)
        classes = len(each)
        labels = names_of(settings.masks, classes)
        own = {label: float(value) for label, value in zip(labels, each, strict=True) if np.isfinite(value)}
        models[name] = {"mean_iou": mean, "pixel_accuracy": float(np.trace(pixels) / pixels.sum()), "each": own}
    largest = next(iter(examiner.pixels.values())).sum(1).max() / next(iter(examiner.pixels.values())).sum()
    return {
        "models": models,
        "train_images": len(learner.rows),
        "test_images": len(examiner.rows),
        "without_mask": sum(learner.left_out.values()) + sum(examiner.left_out.values()),
        "classes": classes,
        "largest_class": float(largest),
    }


def _fidelity(fidelity: Fidelity) -> Result:
    if not fidelity.found:
        return tasks.none("no student here foretells a teacher that is at hand")
    models: dict[str, dict[str, Any]] = {}
    for (student, teacher, kind), agreement in fidelity.found.items():
        models.setdefault(student, {}).setdefault(teacher, {})[kind] = agreement.found()
    return {"models": models}


def _cka(models: Models, judged: Judged, settings: EvaluateRecipe) -> Result:
    students = [one for one in models.subjects if isinstance(one, StudentSubject)]
    if models.teachers is None or not models.teachers.names:
        return tasks.none("no teacher is at hand to compare layers with")
    fresh = models.teachers.again()
    pictures = Pictures(judged.blend, patch=models.pictures.patch, teachers=fresh)
    rows = judged.rows(test=True, most=settings.cka_images)
    tables = {}
    for subject in students[-1:]:
        rows_, columns, values = align(
            subject.student, fresh, pictures, rows.tolist(), models.world, layers=settings.cka_layers
        ).table()
        if values.size:
            cells = [[None if np.isnan(value) else float(value) for value in line] for line in values]
            tables[subject.name] = {"rows": rows_, "columns": columns, "values": cells}
    if not tables:
        return tasks.none("no teacher here shows layers or patch features")
    return {"models": tables, "pictures": len(rows)}


def _maps(models: Models, judged: Judged, settings: EvaluateRecipe) -> tuple[Result, list[tuple[str, list[bytes]]]]:
    patches = Patches(models.pictures.patch)
    models.watch(judged.rows(test=True, most=settings.map_images), [patches])
    rows = sorted(patches.pixels)
    if not rows or not patches.found:
        return tasks.none("no picture could be read, or no model has patch features"), []
    drawn = [("picture", [png(patches.pixels[row], smooth=True) for row in rows])]
    for name, own in patches.found.items():
        shown = colours([own[row] for row in rows], foreground=settings.map_foreground)
        drawn.append((name, [png(one) for one in shown]))
    return {"models": list(patches.found), "pictures": len(rows)}, drawn
