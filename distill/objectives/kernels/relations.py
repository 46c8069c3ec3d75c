"""Losses between images: the student's distances against a teacher's, over all pairs of the global batch, by `tiles`.

Each function takes the whole batch and returns the mean over its pairs, each pair once; without pairs 0, with a
gradient of 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from distill.objectives.kernels.tiles import sum_over_ranks, tiles, total

_EQUAL = 1e-12
"""Squared distances below this fraction of the mean squared length count as 0, where the root has no gradient."""
_ROUNDING = 1e-9
"""How far below the median a distance counts as equal to it: the distance of a pair depends on its tile in the last
digits, and the pair in the middle must be on the same side in all tiles."""
_FEW = 1024
"""Most rows whose distances are held at once: the counts below would take longer."""
_BITS = 21
"""Bits of a distance that are counted in one pass, a divisor of the 63 of a positive float64."""
Distance = Callable[[Tensor, Tensor], Tensor]
"""(n, C), (m, C) -> (n, m)."""


def distance(x_NC: Tensor) -> Distance:
    """The distance between some rows of x and others, in float64; 0 with gradient 0 for equal rows.

    Computed as |a|² + |b|² - 2ab of centred rows, because the differences of all pairs do not fit into memory. This
    loses half of the digits, too many for float32: near rows had distance 1 where 239 was typical.
    """
    with torch.no_grad():
        centre = x_NC.mean(0, dtype=torch.float64)
        parts = x_NC.split(1024)
        least = _EQUAL * sum((part.double() - centre).square().sum() for part in parts) / max(1, len(x_NC))

    def between(x: Tensor, y: Tensor) -> Tensor:
        a, b = x.double() - centre, y.double() - centre
        squared = a.square().sum(1)[:, None] + b.square().sum(1) - 2.0 * a @ b.T
        apart = ~(squared <= least)  # NaN stays NaN
        return torch.where(apart, squared, 1.0).sqrt() * apart

    return between


def arkd(student_ND: Tensor, teacher_ND: Tensor) -> Tensor:
    """Asymmetric relational distillation (AMoE, Eq. 7).

    Both distances are divided by the teacher's mean. Pairs closer than the teacher's median are pulled together if the
    student's distance is larger; other pairs are pushed apart if it is smaller. Smooth L1 of this one-sided error.
    """
    if len(student_ND) < 2:
        return _zero(student_ND)
    teacher_ND = teacher_ND.detach()
    own, wanted = distance(student_ND), distance(teacher_ND)
    mean, median = mean_and_median(wanted, teacher_ND)
    scale, bound = _unit(mean), median * (1.0 - _ROUNDING)

    def errors(rows: tuple[Tensor, ...], columns: tuple[Tensor, ...]) -> Tensor:
        student, teacher = (of(x, y) for of, x, y in zip((own, wanted), rows, columns, strict=True))
        excess = (student - teacher) / scale
        error = torch.where(teacher < bound, excess, -excess).clamp(min=0.0)
        return smooth_l1_loss(error, torch.zeros_like(error), reduction="none")

    return _mean(errors, student_ND, teacher_ND)


def rkd(student_ND: Tensor, teacher_ND: Tensor) -> Tensor:
    """Distance-wise relational distillation (Park et al. 2019, Eqs. 5, 6); each side is divided by its own mean."""
    if len(student_ND) < 2:
        return _zero(student_ND)
    teacher_ND = teacher_ND.detach()
    own, wanted = distance(student_ND), distance(teacher_ND)
    unit, their_unit = _unit(_mean(_between(own), student_ND)), _unit(_mean(_between(wanted), teacher_ND))

    def errors(rows: tuple[Tensor, ...], columns: tuple[Tensor, ...], unit: Tensor) -> Tensor:
        student, teacher = (of(x, y) for of, x, y in zip((own, wanted), rows, columns, strict=True))
        return smooth_l1_loss(student / unit, teacher / their_unit, reduction="none")

    return _mean(errors, student_ND, teacher_ND, scalars=(unit,))


def mean_and_median(of: Distance, x_NC: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the distances of all pairs, and their torch.median (the lower one if two are in the middle).

    Many rows are counted instead: positive float64 sort as the integers that have their bits.
    """
    if len(x_NC) <= _FEW:
        values = of(x_NC, x_NC)
        values = values[torch.ones_like(values, dtype=torch.bool).triu(1)]
        return values.mean(), values.median()
    below, added = (torch.zeros((), dtype=dtype, device=x_NC.device) for dtype in (torch.int64, torch.float64))
    rank, bins = torch.as_tensor((_pairs(x_NC) - 1) // 2, device=x_NC.device), 1 << _BITS
    for shift in range(63 - _BITS, -1, -_BITS):
        counts = torch.zeros(bins, dtype=torch.int64, device=x_NC.device)
        for row, column in tiles(len(x_NC), len(x_NC), x_NC.device, upper=True):
            values = of(x_NC[row], x_NC[column])
            if row.start == column.start:
                values = values[torch.ones_like(values, dtype=torch.bool).triu(1)]
            if shift == 63 - _BITS:
                added += values.sum()
            bits = values.flatten().view(torch.int64) >> shift
            counts += torch.bincount(bits[bits >> _BITS == below] & (bins - 1), minlength=bins)
        reached = sum_over_ranks(counts).cumsum(0)
        bin = torch.searchsorted(reached, rank, right=True)
        rank = rank - torch.where(bin > 0, reached[bin - 1], 0)
        below = (below << _BITS) + bin
    return sum_over_ranks(added) / _pairs(x_NC), below.view(torch.float64)


def _between(of: Distance) -> Callable[..., Tensor]:
    """The tile of distances."""
    return lambda rows, columns: of(*rows, *columns)


def _unit(mean: Tensor) -> Tensor:
    """The mean distance; 1 if all are 0, so that nothing is divided by zero."""
    return torch.where(mean == 0, 1.0, mean)


def _mean(tile: Callable[..., Tensor], *vectors: Tensor, scalars: tuple[Tensor, ...] = ()) -> Tensor:
    """Mean over pairs of images."""
    return total(tile, vectors, vectors, scalars, upper=True) / _pairs(vectors[0])


def _pairs(x_ND: Tensor) -> int:
    return len(x_ND) * (len(x_ND) - 1) // 2


def _zero(student_ND: Tensor) -> Tensor:
    return (0.0 * student_ND).sum().double()
