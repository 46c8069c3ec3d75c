"""What a stage of training trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from curate.core.errors import RecipeError
from curate.encoders.student.model import sizes_only
from distill.context import new_student
from distill.objectives import Objective
from distill.objectives.distillation import Distillation
from distill.recipe import Recipe
from distill.teachers import Teachers
from distill.teachers.base import Shape
from distill.training.optim import freeze


def weights_of(stage: Recipe) -> dict[str, Any]:
    """What decides which weights a stage has, which tokens reach them, and which it trains in which groups."""
    objectives = [(item.label, type(item), item.model_dump(exclude={"weight"})) for item in stage.every_objective]
    return {"text": stage.student.text, "objectives": objectives, "reduction": stage.student.reduction} | {
        name: getattr(stage.train, name) for name in ("rates", "layer_decay")
    }


def check_trained(stages: Sequence[Recipe], teachers: Teachers) -> None:
    """RecipeError if a stage has no loss on features that its teachers have, freezes all weights, or gives a rate to a
    part that its student lacks."""
    shapes = dict(zip(teachers.names, teachers.shapes, strict=True))
    for number, stage in enumerate(stages):
        place = f"stages.{number}." if len(stages) > 1 else ""
        if not any(_trains(item, shapes) for item in stage.every_objective):
            raise RecipeError(f"{place}teachers: no loss on features that they have has a weight above 0; set one")
        if not stage.train.rates:
            continue
        student = sizes_only(partial(new_student, stage, teachers.heads(stage)))
        try:
            freeze(student, stage.train)
        except RecipeError as error:
            raise RecipeError(f"{place}{error}") from None


def _trains(item: Objective, shapes: Mapping[str, Shape]) -> bool:
    if not isinstance(item, Distillation):
        return item.trains
    shape = shapes[item.teacher]
    terms = [item.summary, *[item.patches] * bool(shape.patches), *[item.registers] * bool(shape.registers)]
    return item.trains and any(term.weight > 0 for term in terms)
