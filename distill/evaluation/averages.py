"""Averages over evaluation sets: the mean of the sets' figures, each of which counts once (AMoE, Table 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distill.evaluation.result import Result

FIGURES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "knn": {"accuracy": ("accuracy",)},
    "probe": {"accuracy": ("accuracy",)},
    "zero_shot": {"accuracy": ("accuracy",)},
    "retrieval": {"R@1, image to text": ("image_to_text", "R@1"), "R@1, text to image": ("text_to_image", "R@1")},
    "segmentation": {"mean IoU": ("mean_iou",)},
}
"""By task: the averaged figures, by name, with their places in a model's result."""


def averages(sets: Sequence[Result]) -> list[dict[str, Any]]:
    """Per resolution, task and model: `side`, `task`, `figure`, `model`, `mean`, `sets` (their number).

    A model needs the figure in each set of that resolution where the task was computed, and 2 such sets.
    """
    found = []
    for side in dict.fromkeys(one["side"] for one in sets):
        for task, places in FIGURES.items():
            own = [one[task]["models"] for one in sets if one["side"] == side and one.get(task, {}).get("models")]
            common = [name for name in (own[0] if len(own) > 1 else ()) if all(name in models for models in own)]
            for figure, place in places.items():
                for name in common:
                    mean = sum(_figure(models[name], place) for models in own) / len(own)
                    row = {"side": side, "task": task, "figure": figure, "model": name}
                    found.append(row | {"mean": mean, "sets": len(own)})
    return found


def _figure(model: Mapping[str, Any], place: Sequence[str]) -> float:
    value: Any = model
    for name in place:
        value = value[name]
    return float(value)
