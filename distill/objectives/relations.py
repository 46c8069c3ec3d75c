"""Objectives that compare the student's summaries of all images with each other as a teacher's are."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from distill.objectives.base import Needs, Objective

if TYPE_CHECKING:
    from torch import Tensor

    from curate.encoders.student.network.student import Student
    from distill.objectives.outputs import Outputs


class Relations(Objective):
    """Base of losses between two sets of vectors; subclasses define `loss`."""

    teacher: str
    """Its label."""

    @property
    def label(self) -> str:
        return f"{self.teacher}/{super().label}"

    def needs(self) -> Needs:
        return Needs(features={self.teacher: frozenset({"summary"})})

    def vectors(self, outputs: Outputs) -> tuple[Tensor, ...]:
        return outputs.predicted(self.teacher).summary, outputs.target(self.teacher).summary

    def pairs(self, student: Student, *vectors: Tensor) -> Tensor:
        own, wanted = vectors
        return self.loss(own, wanted.detach())

    @abstractmethod
    def loss(self, student_ND: Tensor, teacher_ND: Tensor) -> Tensor:
        """A mean over pairs of images, from standardised summaries; for fewer than two images 0, with a gradient."""
