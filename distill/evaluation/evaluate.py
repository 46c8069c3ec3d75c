"""Runs all evaluation tasks on one evaluation set."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.datasets import EvaluationSet, LabelSplit
from distill.evaluation.extraction import Evaluator, FeatureExtractor, Vectors
from distill.evaluation.result import Result, not_computed
from distill.evaluation.tasks import alignment, fidelity, knn, maps, probes, retrieval, segmentation, zero_shot
from distill.evaluation.tasks.classification import LabelledFeatures, check_finite

_CLASSIFIERS = {"knn": knn.run, "probe": probes.run, "zero_shot": zero_shot.run}


@dataclass
class Evaluation:
    """Results of one evaluation set."""

    result: Result
    """JSON-able."""
    maps: list[tuple[str, list[bytes]]] = field(default_factory=list)
    """Rows of the drawing of patch features: name, and a PNG per image."""


def evaluate_set(extractor: FeatureExtractor, data: EvaluationSet) -> Evaluation:
    """All tasks of the settings on one set; the same result on every rank."""
    settings, tasks = data.settings, set(data.settings.tasks)
    test = data.rows(test=True, most=settings.max_test_images)
    counts: Result = {"test": len(test), "train": int((~data.test).sum()), "skipped": {}}
    evaluation = Evaluation(
        {"name": data.title, "set": data.name, "url": data.mixture.url, "side": data.side, "fit": data.fit}
        | {"counts": counts}
    )
    result = evaluation.result
    if not len(test):
        why = (
            f"no test images: none of the {counts['train']} images is held out; raise data.test_fraction, or the "
            f"dataset's own test_fraction (1: all images are test images)"
        )
        return _nothing(evaluation, data, why)
    split = data.label_split() if tasks & _CLASSIFIERS.keys() else "not requested"
    vectors, predictions = Vectors(), fidelity.PredictionErrors()
    trainer, attention = _train(extractor, data, split, vectors)
    masks = _test(extractor, data, split, [vectors, predictions, attention], trainer, test, counts)
    if vectors.rows.isdisjoint(test.tolist()):
        reasons = ", ".join(f"{why} {count}" for why, count in counts["skipped"].items())
        return _nothing(evaluation, data, f"no test image can be read ({reasons}); check the files")
    for (name, space), own in vectors.values.items():
        check_finite(f"{name}{f' as {space}' if space else ''}, on {data.title}", np.stack(list(own.values())))
    for task, classify in _CLASSIFIERS.items():
        if task in tasks and isinstance(split, str):
            result[task] = not_computed(split)
        elif task in tasks and not isinstance(split, str):
            result[task] = classify(
                LabelledFeatures(
                    split, vectors, extractor.models, settings, extractor.world, data.seed, attention.scores
                )
            )
    if "retrieval" in tasks:
        result["retrieval"] = retrieval.run(data, vectors, extractor.models, test.tolist())
    if "segmentation" in tasks:
        result["segmentation"] = segmentation.result(settings.masks, trainer, masks)
    if "fidelity" in tasks:
        result["fidelity"] = predictions.result()
    if "cka" in tasks:
        result["cka"] = alignment.run(extractor, data)
    if "maps" in tasks:
        result["maps"], evaluation.maps = maps.run(extractor, data)
    return evaluation


def _nothing(evaluation: Evaluation, data: EvaluationSet, why: str) -> Evaluation:
    """The same reason for every task."""
    evaluation.result |= {task: not_computed(why) for task in data.settings.tasks}
    return evaluation


def _train(
    extractor: FeatureExtractor, data: EvaluationSet, split: LabelSplit | str, vectors: Vectors
) -> tuple[segmentation.ProbeTrainer | None, probes.AttentionScores]:
    """The passes over training images: vectors for kNN and probes, patches for the attention probe, which is then
    trained, and sums for segmentation."""
    settings, attention = data.settings, probes.AttentionScores({})
    if {"knn", "probe"} & set(settings.tasks) and isinstance(split, LabelSplit):
        keeps = "probe" in settings.tasks and "attention" in settings.probes
        keeper = probes.PatchKeeper(split, settings, data.seed) if keeps else None
        extractor.run(split.train, [vectors, *([keeper] if keeper is not None else [])])
        if keeper is not None:
            attention = probes.AttentionScores(keeper.layers())
    if "segmentation" not in settings.tasks or settings.masks is None:
        return None, attention
    trainer = segmentation.ProbeTrainer(data, extractor.reader.patch)
    extractor.run(data.rows(test=False, most=settings.max_mask_images), [trainer])
    return trainer, attention


def _test(
    extractor: FeatureExtractor,
    data: EvaluationSet,
    split: LabelSplit | str,
    evaluators: list[Evaluator],
    trainer: segmentation.ProbeTrainer | None,
    test: NDArray[np.int64],
    counts: Result,
) -> segmentation.MaskEvaluator | None:
    """The passes over test images. Adds the skipped images to `counts`."""
    with_masks, evaluator = test[:0], None
    if trainer is not None and trainer.sums and trainer.rows:
        evaluator = segmentation.MaskEvaluator(data, extractor.reader.patch, trainer.probes())
        with_masks = test[: data.settings.max_mask_images]
    rows = test if isinstance(split, str) else np.union1d(test, np.union1d(split.test, split.left_out))
    skipped = extractor.run(np.setdiff1d(rows, with_masks), evaluators)
    skipped += extractor.run(with_masks, [*evaluators, *([evaluator] if evaluator is not None else [])])
    counts["skipped"] = dict(skipped)
    return evaluator
