"""Losses between pictures: the student's distances against a teacher's, over all pairs of the global batch.

Each function sees the whole batch and gives a mean over its pairs, 0 (with a gradient of 0) where it has none.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

_EQUAL = 1e-12
"""Squared distances below this share of the mean squared length count as 0: the root has no gradient there."""


def distances(x_NC: Tensor) -> Tensor:
    """Between different rows, each pair once (N (N - 1) / 2,), in float64; equal rows have distance and gradient 0.

    By |a|² + |b|² - 2ab of centred rows, since differences of all pairs do not fit into memory. That loses half of the
    digits, of float32 all that matter: near rows came out at 1 where 239 was typical.
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

    Both distances are divided by the teacher's mean. Pairs nearer than the teacher's median are only pulled together,
    where the student has them further apart; the others are only pushed apart. Smooth L1 of that one-sided error.
    """
    if len(student_ND) < 2:
        return _nothing(student_ND)
    wanted = distances(teacher_ND.detach())
    mean = _unit(wanted)
    excess = (distances(student_ND) - wanted) / mean
    error = torch.where(wanted < wanted.median(), excess, -excess).clamp(min=0.0)
    return smooth_l1_loss(error, torch.zeros_like(error))


def rkd(student_ND: Tensor, teacher_ND: Tensor) -> Tensor:
    """Distance-wise relational distillation (Park et al. 2019, Eqs. 5, 6): each distance over its own side's mean."""
    if len(student_ND) < 2:
        return _nothing(student_ND)
    own, wanted = distances(student_ND), distances(teacher_ND.detach())
    return smooth_l1_loss(own / _unit(own), wanted / _unit(wanted))


def _unit(distances_P: Tensor) -> Tensor:
    """Their mean; 1 where all are 0, so that nothing is divided by zero."""
    mean = distances_P.mean()
    return torch.where(mean == 0, 1.0, mean)


def _nothing(student_ND: Tensor) -> Tensor:
    return (0.0 * student_ND).sum().double()
