"""The loss of a share: what the student says of its pictures against what the teachers say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distill.data.loader import Batch
from distill.losses import patch_loss, summary_loss
from distill.models.student import Head, Student
from distill.recipe import TeacherRecipe
from distill.teachers import Standards, Target


@dataclass
class Losses:
    """Sums over the images of a share; divide by the images of the global batch for means."""

    total: Tensor
    """Weighted over teachers and kinds; has a gradient."""
    parts: dict[str, Tensor]
    """Unweighted and detached, as `teacher/summary` and `teacher/patches`."""


def share_loss(
    student: Student,
    batch: Batch,
    targets: Sequence[Target],
    standards: Sequence[Standards],
    recipes: Sequence[TeacherRecipe],
) -> Losses:
    """targets: of each teacher, in its own space, for the batch's pictures."""
    device = student.backbone.prefix.device
    output = student(torch.from_numpy(batch.patches).to(device), batch.grids)
    tokens = [rows * columns for rows, columns in batch.grids]
    total, parts = torch.zeros((), dtype=torch.float64, device=device), {}
    for head, target, standard, recipe in zip(student.heads, targets, standards, recipes, strict=True):
        assert isinstance(head, Head)
        dtype = student.backbone.prefix.dtype
        wanted = standard(target).to(device, dtype)
        summary = summary_loss(head(output.summary).to(dtype), wanted.summary).sum()
        parts[f"{recipe.label}/summary"] = summary.detach()
        total = total + recipe.summary.weight * summary
        if wanted.patches is not None and recipe.patches.weight:
            predicted = head.patches(output.patches).to(dtype)
            patches = patch_loss(predicted, wanted.patches, tokens, recipe.patches.error).sum()
            parts[f"{recipe.label}/patches"] = patches.detach()
            total = total + recipe.patches.weight * patches
    return Losses(total, parts)
