"""Losses between images: the student's distances against a teacher's, over all pairs of the global batch.

Each function takes the whole batch and returns the mean over its pairs; without pairs 0, with a gradient of 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

_EQUAL = 1e-12
"""Squared distances below this fraction of the mean squared length count as 0, where the root has no gradient."""


def distances(x_NC: Tensor) -> Tensor:
    """Distances of different rows, each pair once (N (N - 1) / 2,), in float64; 0 with gradient 0 for equal rows.

    Computed as |a|² + |b|² - 2ab of centred rows, because the differences of all pairs do not fit into memory. This
    loses half of the digits, too many for float32: near rows had distance 1 where 239 was typical.
    """
    with torch.autocast(x_NC.device.type, enabled=False):
        x = x_NC.double()
        x = x - x.mean(0).detach()
        length = x.square().sum(1)
        i, j = torch.triu_indices(len(x), len(x), 1, device=x.device)
        squared = (length[:, None] + length - 2.0 * x @ x.T)[i, j]
        apart = squared > _EQUAL * length.detach().mean()
        return torch.where(apart, squared, 1.0).sqrt() * apart


def arkd(student_ND: Tensor, teacher_ND: Tensor) -> Tensor:
    """Asymmetric relational distillation (AMoE, Eq. 7).

    Both distances are divided by the teacher's mean. Pairs closer than the teacher's median are pulled together if the
    student's distance is larger; other pairs are pushed apart if it is smaller. Smooth L1 of this one-sided error.
    """
    if len(student_ND) < 2:
        return _zero(student_ND)
    teacher = distances(teacher_ND.detach())
    excess = (distances(student_ND) - teacher) / _unit(teacher)
    error = torch.where(teacher < teacher.median(), excess, -excess).clamp(min=0.0)
    return smooth_l1_loss(error, torch.zeros_like(error))


def rkd(student_ND: Tensor, teacher_ND: Tensor) -> Tensor:
    """Distance-wise relational distillation (Park et al. 2019, Eqs. 5, 6); each side is divided by its own mean."""
    if len(student_ND) < 2:
        return _zero(student_ND)
    student, teacher = distances(student_ND), distances(teacher_ND.detach())
    return smooth_l1_loss(student / _unit(student), teacher / _unit(teacher))


def _unit(distances_P: Tensor) -> Tensor:
    """Mean distance; 1 if all are 0, so that nothing is divided by zero."""
    mean = distances_P.mean()
    return torch.where(mean == 0, 1.0, mean)


def _zero(student_ND: Tensor) -> Tensor:
    return (0.0 * student_ND).sum().double()
