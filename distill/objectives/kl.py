"""Distillation of a teacher's distributions over pairs of images and texts (Perception Encoder: Bolya et al. 2025,
sections 2.4 and C.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from distill.objectives.base import Needs, Objective

if TYPE_CHECKING:
    from torch import Tensor

    from curate.encoders.student.network.student import Student
    from distill.objectives.outputs import Outputs


class Kl(Objective):
    """The student's distribution over the texts of the global batch for each image, and over the images for each text,
    are those of a teacher of images and texts; no text is left out."""

    teacher: str
    """Its label. Its summaries and the vectors of its text tower are compared as they are, not standardised."""
    teacher_scale: Annotated[float, Field(gt=0, le=1e4)] = 200.0
    """Fixed factor of the teacher's cosines: 200 is twice the maximum of the student's, which is learned."""
    temperature: Annotated[float | None, Field(ge=0.01, le=1e3)] = None
    """Initial value of the student's; None: as another objective sets it, or 0.07."""

    @property
    def label(self) -> str:
        return f"{self.teacher}/{super().label}"

    def needs(self) -> Needs:
        texts = frozenset({self.teacher})
        return Needs(True, True, features={self.teacher: frozenset({"summary"})}, teacher_texts=texts)

    def heads(self, student: Student) -> None:
        """Only the temperature is set."""
        from curate.encoders.student.network.text import set_temperature

        if self.temperature is not None:
            set_temperature(student.logit_scale, self.temperature)

    def vectors(self, outputs: Outputs) -> tuple[Tensor, ...]:
        return outputs.image_vectors, outputs.text_vectors, *outputs.pair_vectors(self.teacher)

    def pairs(self, student: Student, *vectors: Tensor) -> Tensor:
        from distill.objectives.kernels.contrastive import kl_loss

        images, texts, their_images, their_texts = vectors
        return kl_loss(images, texts, student.logit_scale, (their_images, their_texts, self.teacher_scale))

    def after_update(self, student: Student) -> None:
        """Keep the student's temperature above its limit."""
        from curate.encoders.student.network.text import limit_scale
        from distill.parallel import local

        limit_scale(local(student.logit_scale))
