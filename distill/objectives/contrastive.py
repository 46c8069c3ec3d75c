"""Contrastive training: images against their texts over the global batch, by softmax (CLIP) or sigmoid (SigLIP); frames
of clips against each other, as two views of an image (Mu et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from curate.core.contracts import Added
from curate.core.recipe.section import Share, Weight
from distill.objectives.base import Needs, Objective

if TYPE_CHECKING:
    from torch import Tensor

    from curate.encoders.student.network.student import Student
    from distill.objectives.outputs import Outputs


class Contrastive(Objective):
    """Images against their texts, over the global batch."""

    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    loss: Literal["softmax", "sigmoid"] = "softmax"
    """softmax: CLIP (Radford et al. 2021); sigmoid: SigLIP (Zhai et al. 2023)."""
    temperature: Annotated[float, Field(ge=0.01, le=1e3)] = 0.07
    """Initial value; it is learned, and stays above 0.01."""
    smoothing: Share = 0.0
    """Label smoothing of softmax."""
    negatives: Annotated[Literal["distinct", "all"], Added()] = "distinct"
    """Which other samples are negatives of an image. distinct: those with another text and of another duplicate set;
    all: every one, as in the papers."""
    frame_pairs: Annotated[Weight, Added()] = 0.0
    """Weight of the same loss between two frames of each clip, drawn again in each epoch: they are a positive pair, and
    frames of other clips are negatives."""

    @model_validator(mode="after")
    def _of_softmax(self) -> Contrastive:
        if self.loss == "sigmoid" and self.smoothing:
            raise ValueError(f"smoothing {self.smoothing:g} requires loss: softmax, not sigmoid; remove one of them")
        return self

    def needs(self) -> Needs:
        return Needs(text=True, text_tower=True)

    def heads(self, student: Student) -> None:
        """The text tower is the student's own; only the temperature is set."""
        from curate.encoders.student.network.text import set_temperature

        set_temperature(student.logit_scale, self.temperature)

    def vectors(self, outputs: Outputs) -> tuple[Tensor, ...]:
        own = outputs.image_vectors, outputs.text_vectors, outputs.groups
        return (*own, *outputs.frame_vectors) if self.frame_pairs else own

    def pairs(self, student: Student, *vectors: Tensor) -> Tensor:
        from distill.objectives.kernels.contrastive import contrastive_loss

        def loss(images: Tensor, others: Tensor, groups: Tensor) -> Tensor:
            distinct = groups if self.negatives == "distinct" else None
            return contrastive_loss(images, others, student.logit_scale, student.logit_bias, self, distinct)

        images, texts, groups, *frames = vectors
        total = loss(images, texts, groups)
        if not frames:
            return total
        first, second, clips = frames
        mine = clips.bool()
        return total + self.frame_pairs * loss(first[mine], second[mine], groups[mine])

    def after_update(self, student: Student) -> None:
        """Keep the temperature above its limit."""
        from curate.encoders.student.network.text import limit_scale
        from distill.parallel import local

        limit_scale(local(student.logit_scale))
