"""ARKD: distances between images that are too large or too small are corrected (AMoE, Eq. 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distill.objectives.relations import Relations

if TYPE_CHECKING:
    from torch import Tensor


class Arkd(Relations):
    """Asymmetric relational distillation."""

    @property
    def label(self) -> str:
        return f"{self.teacher}/relations"

    def loss(self, student_ND: Tensor, teacher_ND: Tensor) -> Tensor:
        from distill.objectives.kernels.relations import arkd

        return arkd(student_ND, teacher_ND)
