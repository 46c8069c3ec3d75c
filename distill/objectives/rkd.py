"""RKD: distances between images are those of the teacher (Park et al. 2019, distance-wise)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distill.objectives.relations import Relations

if TYPE_CHECKING:
    from torch import Tensor


class Rkd(Relations):
    """Distance-wise relational distillation."""

    @property
    def label(self) -> str:
        return f"{self.teacher}/relations"

    def loss(self, student_ND: Tensor, teacher_ND: Tensor) -> Tensor:
        from distill.objectives.kernels.relations import rkd

        return rkd(student_ND, teacher_ND)
