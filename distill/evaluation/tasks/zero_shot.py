"""Zero-shot classification: a class is the mean direction of its names in many sentences (Radford et al. 2021,
Sec. 3.1.4, prompt ensembling)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.models import TextEncoder, space_name
from distill.evaluation.result import Result, not_computed
from distill.evaluation.tasks import ensemble
from distill.evaluation.tasks.classification import HEADS_TOGETHER, MIN_HEADS, LabelledFeatures, check_finite
from distill.evaluation.tasks.knn import unit
from distill.evaluation.tasks.prompts import names_of, read_names, read_templates
from distill.evaluation.tasks.retrieval import NO_TEXT_ENCODER

Floats = NDArray[np.floating[Any]]
_BATCH = 512


def run(features: LabelledFeatures) -> Result:
    """Accuracies on all labelled test images, including those of rare classes."""
    readers = [model for model in features.models if model.texts]
    if not readers:
        return not_computed(NO_TEXT_ENCODER)
    if not features.all_test:
        return not_computed("no labelled test image can be read")
    settings, classes = features.settings, features.split.classes
    given = read_names(settings.class_names) if settings.class_names else {}
    names = names_of(classes, given)
    templates = read_templates(settings.prompts) if settings.prompts else read_templates()
    scores: dict[str, Floats] = {}
    for model in readers:
        own = {}
        for space, encode_text in model.texts.items():
            images = features.vectors.stack(model.name, space, features.all_test)
            own[space_name(model, space)] = class_scores(images, class_vectors(encode_text, names, templates))
        scores |= own
        if len(own) >= MIN_HEADS:
            both = ensemble.fused(list(own.values()), settings.ensemble_temperature, settings.gamma)
            scores[f"{model.name}, {HEADS_TOGETHER}"] = both
    return features.result(scores, features.all_test) | {
        "chance": 1 / len(classes),
        "prompts": len(templates),
        "named": sum(name in given for name in classes),
    }


def class_vectors(
    encode_text: TextEncoder, names: Sequence[Sequence[str]], templates: Sequence[str]
) -> NDArray[np.float32]:
    """Class vectors (C, D) of unit length: the mean of the unit vectors of a class's names in all templates.

    names: one or more per class; templates: sentences with `{}` for the name. Each sentence is encoded once.
    """
    sentences = [[template.replace("{}", name) for name in own for template in templates] for own in names]
    place = {text: number for number, text in enumerate(dict.fromkeys(text for own in sentences for text in own))}
    texts = list(place)
    vectors = unit(np.concatenate([encode_text(texts[at : at + _BATCH]) for at in range(0, len(texts), _BATCH)]))
    check_finite("texts of the classes", vectors)
    return unit(np.stack([vectors[[place[text] for text in own]].mean(0) for own in sentences]))


def class_scores(images_ND: Floats, classes_CD: Floats) -> NDArray[np.float32]:
    """Cosines (N, C)."""
    scores: NDArray[np.float32] = unit(images_ND) @ unit(classes_CD).T
    return scores
