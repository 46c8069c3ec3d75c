"""The terms of several objectives: of single images, which add up, and between the images of the global batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from curate.encoders.student.network.student import Student
from distill.objectives.base import Objective
from distill.objectives.outputs import Outputs

Vectors = Mapping[str, tuple[Tensor, ...]]
"""Vectors of images by the label of the objective that compares them."""


@dataclass
class Terms:
    """Terms of the images of a micro-batch, as sums: the caller divides by the number of images in the global batch."""

    additive: Tensor
    """Weighted sum over objectives, float64, with a gradient."""
    parts: dict[str, Tensor] = field(default_factory=dict)
    """Unweighted and detached terms, by name."""
    vectors: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    """For `relational`, with gradients."""


def terms_of(objectives: Sequence[Objective], outputs: Outputs) -> Terms:
    """Terms of the images of a micro-batch, and their vectors."""
    terms = Terms(torch.zeros((), dtype=torch.float64, device=outputs.student.backbone.prefix.device))
    for objective in objectives:
        for name, (weight, losses_B) in objective.terms(outputs).items():
            total = losses_B.sum()
            terms.parts[name] = total.detach()
            terms.additive = terms.additive + weight * total
        if objective.relates:
            terms.vectors[objective.label] = objective.vectors(outputs)
    return terms


def relational(objectives: Sequence[Objective], vectors: Vectors, student: Student) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted sum of the losses between images, and the unweighted losses by label. vectors: of the global batch."""
    device = next(iter(vectors.values()))[0].device if vectors else None
    total, parts = torch.zeros((), dtype=torch.float64, device=device), {}
    for objective in objectives:
        loss = objective.pairs(student, *vectors[objective.label])
        parts[objective.label] = loss.detach()
        total = total + objective.weight * loss
    return total, parts
