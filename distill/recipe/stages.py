"""What a stage of training may change, and what it takes over from the stage before."""

from __future__ import annotations

from collections.abc import Sequence

from curate.core.errors import RecipeError
from curate.encoders.student.config import StudentConfig
from distill.recipe.recipe import Recipe

_OF_A_STAGE = {"text", "keep", "keep_layers", "merge"}


def check_stages(stages: Sequence[Recipe]) -> None:
    """RecipeError if a later stage changes a setting of the optimiser, the standardisation, the held-out rows, the
    backbone or the kinds of teachers' features, which it takes over from the first stage."""
    sizes = [f"student.{name}" for name in StudentConfig.model_fields if name not in _OF_A_STAGE]
    texts = [stage.student.text for stage in stages if stage.student.text is not None]
    for number, stage in enumerate(stages):
        if stage.student.text not in (None, *texts[:1]):
            raise RecipeError(
                f"stages.{number}.student.text: another text tower than before; set it once, or null here"
            )
        for place in sizes:
            first, own = (getattr(item.student, place.partition(".")[2]) for item in (stages[0], stage))
            if own != first:
                raise RecipeError(
                    f"stages.{number}.{place}: {own!r}, but {first!r} in the first stage; a stage may change "
                    f"objectives and heads, not the shape of the backbone: set it once, as {place}"
                )
        for label, kinds in stage.needs.features.items():
            if kinds != (first := stages[0].needs.features[label]):
                raise RecipeError(
                    f"stages.{number}.teachers.{label}: its losses need {', '.join(sorted(kinds))}, those of the "
                    f"first stage {', '.join(sorted(first))}; give a loss that one stage lacks a small weight"
                )
        for place in ("train.optimizer", "train.precision", "train.standardise_samples", "data.test_fraction"):
            section, name = place.split(".")
            first, given = (getattr(getattr(item, section), name) for item in (stages[0], stage))
            if given != first:
                raise RecipeError(
                    f"stages.{number}.{place}: {given!r}, but {first!r} in the first stage; set it once, as {place}"
                )
        if bool(stage.train.ema) != bool(stages[0].train.ema):
            raise RecipeError(
                f"stages.{number}.train.ema: on in one stage and off in another; set it in all stages or in none"
            )
