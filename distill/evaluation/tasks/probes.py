"""Probes of frozen features: how well a simple classifier of them tells the classes (Perception Encoder, section 2.5).

ridge       a linear layer on the summary, in closed form (`probe`)
linear      the same layer, trained by gradient descent, as InternVL's
attention   a learned query over the patches and a linear layer, trained in the same way, as AIMv2's
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.datasets import LabelSplit
from distill.evaluation.extraction import FeatureBatch, Vectors, united
from distill.evaluation.result import Result, not_computed
from distill.evaluation.tasks.classification import LabelledFeatures
from distill.evaluation.tasks.probe import Sums, fit, one_hot
from distill.evaluation.tasks.trained import AttentionLayer, LinearLayer, Schedule, Trained, train
from distill.parallel import World
from distill.recipe import EvaluateRecipe

Floats = NDArray[np.floating[Any]]


def run(features: LabelledFeatures) -> Result:
    """Accuracies of the probes that the settings name, of each model; that of ridge regression has no suffix."""
    if (why := features.why_not_trainable()) is not None:
        return not_computed(why)
    kinds, scores = features.settings.probes, {}
    for model in features.models:
        if "ridge" in kinds:
            scores[model.name] = _ridge(features, model.name)
        if "linear" in kinds:
            scores[f"{model.name}, linear"] = _linear(features, model.name)
        if (own := features.attention.get(model.name)) is not None:
            scores[f"{model.name}, attention"] = np.stack([own[row] for row in features.test])
    if not scores:
        return not_computed("no model here has an output of each patch, which a probe by attention needs")
    return features.result(scores, features.test) | features.baselines()


def _ridge(features: LabelledFeatures, model: str) -> Floats:
    x = features.vectors.stack(model, Vectors.SUMMARY, features.train)
    sums = Sums.empty(x.shape[1], len(features.split.classes))
    sums.add(x, one_hot(features.labels(features.train), len(features.split.classes)))
    return fit(sums)(features.vectors.stack(model, Vectors.SUMMARY, features.test))


def _linear(features: LabelledFeatures, model: str) -> Floats:
    """Every rank has all vectors, and computes the gradients of its share."""
    classes, world = len(features.split.classes), features.world
    rows = features.train[world.rank :: world.size]
    x = features.vectors.stack(model, Vectors.SUMMARY, rows) if rows else np.zeros((0, 0), dtype=np.float32)
    y = one_hot(features.labels(rows), classes)
    own = {row: (x[place : place + 1], y[place : place + 1]) for place, row in enumerate(rows)}
    width = features.vectors.stack(model, Vectors.SUMMARY, features.train[:1]).shape[1]
    layer = train(LinearLayer(width, classes), own, _schedule(features.settings), world=world, seed=features.seed)
    return layer(list(features.vectors.stack(model, Vectors.SUMMARY, features.test)[:, None]))


def _schedule(settings: EvaluateRecipe) -> Schedule:
    return Schedule(
        settings.probe_epochs, settings.probe_batch, settings.probe_learning_rate, settings.probe_optimizer,
        settings.probe_weight_decay, decays=True,
    )  # fmt: skip


class PatchKeeper:
    """Evaluator of the training images: keeps their patches, in float16, on the rank that read them."""

    def __init__(self, split: LabelSplit, settings: EvaluateRecipe, seed: int) -> None:
        count = min(len(split.train), settings.max_attention_images)
        chosen = np.random.default_rng(seed).choice(split.train, count, replace=False)
        self._rows, self._split, self._settings, self._seed = set(chosen.tolist()), split, settings, seed
        self._kept: dict[str, dict[int, tuple[Floats, Floats]]] = {}
        self._widths: dict[str, int] = {}
        self._world: World | None = None

    def update(self, features: FeatureBatch) -> None:
        for name, output in features.outputs.items():
            if output.patches is None:
                continue
            kept = self._kept.setdefault(name, {})
            for row, patches in features.per_image(output.patches):
                if row in self._rows:
                    label = one_hot(np.array([self._split.labels[row]]), len(self._split.classes))
                    kept[row] = patches.reshape(-1, patches.shape[-1]).astype(np.float16), label
                    self._widths[name] = patches.shape[-1]

    def merge(self, world: World) -> None:
        """The patches stay where they are."""
        self._world = world
        self._widths = {name: width for part in world.gather(self._widths) for name, width in part.items()}

    def layers(self) -> dict[str, Trained]:
        """The trained layer of each model that has patches. A collective of all ranks."""
        assert self._world is not None
        layers = {}
        for name, width in self._widths.items():
            layer = AttentionLayer(width, len(self._split.classes), self._seed)
            own, schedule = self._kept.pop(name, {}), _schedule(self._settings)
            layers[name] = train(layer, own, schedule, world=self._world, seed=self._seed)
        return layers


class AttentionScores:
    """Evaluator of the test images: the scores of each model's attention probe, by row."""

    def __init__(self, layers: Mapping[str, Trained]) -> None:
        self._layers = layers
        self.scores: dict[str, dict[int, Floats]] = {}

    def update(self, features: FeatureBatch) -> None:
        for name, layer in self._layers.items():
            patches = features.outputs[name].patches
            assert patches is not None
            rows, images = zip(*features.per_image(patches), strict=True)
            scores = layer([own.reshape(-1, own.shape[-1]) for own in images])
            self.scores.setdefault(name, {}).update(zip(rows, scores, strict=True))

    def merge(self, world: World) -> None:
        self.scores = united(world.gather(self.scores))
