"""Averages over evaluation sets: the mean of the sets' figures, each of which counts once (AMoE, Table 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distill.evaluation.result import Result

FIGURES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "knn": {"accuracy": ("accuracy",)},
    "probe": {"accuracy": ("accuracy",)},
    "zero_shot": {"accuracy": ("accuracy",)},
    "retrieval": {
        "R@1, image to text": ("image_to_text", "R@1"),
        "R@1, text to image": ("text_to_image", "R@1"),
        "R@1, image to text, re-weighted": ("reweighted", "image_to_text", "R@1"),
        "R@1, text to image, re-weighted": ("reweighted", "text_to_image", "R@1"),
    },
    "segmentation": {"mean IoU": ("mean_iou",)},
}
"""By task: the averaged figures, by name, with their places in a model's result."""
BEST = "best"
"""Of each set and model, the figure of the fit in which it is best (Perception Encoder, appendix B.1.2)."""


def averages(sets: Sequence[Result]) -> list[dict[str, Any]]:
    """Per resolution, fit, task and model: `side`, `fit`, `task`, `figure`, `model`, `mean`, `sets` (their number).

    A model needs the figure in each set of that resolution and fit where the task was computed, and 2 such sets; with
    several fits, BEST is one more, of any number of sets.
    """
    found = []
    for side in dict.fromkeys(one["side"] for one in sets):
        own = [one for one in sets if one["side"] == side]
        fits = list(dict.fromkeys(one["fit"] for one in own))
        for fit in [*fits, *([BEST] if len(fits) > 1 else [])]:
            chosen = own if fit == BEST else [one for one in own if one["fit"] == fit]
            for task, places in FIGURES.items():
                for figure, place in places.items():
                    values = list(_figures(chosen, task, place).values())
                    enough = len(values) > 1 or (fit == BEST and values)
                    for name in values[0] if enough else ():
                        if all(name in models for models in values):
                            mean = sum(models[name] for models in values) / len(values)
                            row = {"side": side, "fit": fit, "task": task, "figure": figure, "model": name}
                            found.append(row | {"mean": mean, "sets": len(values)})
    return found


def _figures(sets: Sequence[Result], task: str, place: Sequence[str]) -> dict[str, dict[str, float]]:
    """By set and model, the largest figure."""
    found: dict[str, dict[str, float]] = {}
    for one in sets:
        for name, model in one.get(task, {}).get("models", {}).items():
            value = _figure(model, place)
            if value is not None:
                own = found.setdefault(one["set"], {})
                own[name] = max(own.get(name, value), value)
    return found


def _figure(model: Mapping[str, Any], place: Sequence[str]) -> float | None:
    """None if it was not computed."""
    value: Any = model
    for name in place:
        value = value.get(name, {})
    return value if isinstance(value, float) else None
