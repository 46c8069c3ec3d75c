"""What the student is asked for: terms of each picture, which add up, and terms between the global batch's pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distill.models.student import Student
from distill.models.vit import VitOutput
from distill.objectives.losses import errors, image_means
from distill.objectives.relations import arkd, rkd
from distill.recipe import Recipe, TeacherRecipe
from distill.samples.batches.loader import Batch
from distill.teachers import Standards, Target

Pooler = Callable[[Tensor, Sequence[int]], Tensor]
"""(patches of all images (N, P), patches per image) -> summaries (B, D): a teacher's own, see `Teachers.poolers`."""

_RELATIONS = {"arkd": arkd, "rkd": rkd}
CONTRASTIVE = "contrastive"


@dataclass
class Terms:
    """Of the pictures of a share. Sums over its images: divide by the images of the global batch for means."""

    additive: Tensor
    """Weighted over teachers and kinds, float64; has a gradient."""
    parts: dict[str, Tensor]
    """Unweighted and detached, by `part_names`."""
    pairs: dict[str, tuple[Tensor, ...]]
    """By `pair_names`, for `relational`: the student's vectors (B, D) with a gradient, and the other side's: a
    teacher's summaries (without), or vectors of texts (with), followed by `groups`."""


def student_terms(
    student: Student,
    batch: Batch,
    targets: Sequence[Target],
    standards: Sequence[Standards],
    recipe: Recipe,
    tokens: Tensor | None = None,
    groups: Tensor | None = None,
    *,
    poolers: Mapping[str, Pooler] | None = None,
) -> Terms:
    """targets: of each teacher, in its own space, for the batch's pictures; tokens (B, L): of their texts;
    groups (B, G): numbers by which samples are told to be the same (see contrastive_loss)."""
    device, dtype = student.backbone.prefix.device, student.backbone.prefix.dtype
    output = student(batch.tensor(device), batch.grids)
    lengths = [rows * columns for rows, columns in batch.grids]
    terms = Terms(torch.zeros((), dtype=torch.float64, device=device), {}, {})
    for number, teacher in enumerate(recipe.teachers):
        pooler = (poolers or {})[teacher.label] if teacher.pooler else None
        predicted = _predicted(student.heads[number], output, lengths, teacher, standards[number], pooler)
        wanted = standards[number](targets[number].to(device, dtype))
        _add_teacher(terms, teacher, predicted.to(device, dtype), wanted, lengths)
    if recipe.contrastive is not None:
        assert tokens is not None and groups is not None
        own = (student.project(output.summary).to(dtype), student.text(tokens).to(dtype))
        terms.pairs[CONTRASTIVE] = (*own, groups)
    return terms


def _predicted(
    head: torch.nn.Module,
    output: VitOutput,
    lengths: Sequence[int],
    teacher: TeacherRecipe,
    standards: Standards,
    pooler: Pooler | None,
) -> Target:
    """What the student says in the teacher's standardised space, of the kinds that are asked for."""
    wants_patches = standards.patches is not None and (teacher.patches.weight > 0 or pooler is not None)
    patches = head.patches(output.patches) if wants_patches else None
    wants_registers = standards.registers is not None and teacher.registers.weight > 0
    registers = head.registers(output.registers) if wants_registers else None
    if pooler is None:
        return Target(head.summary(output.summary), patches, registers)
    assert patches is not None
    raw = standards.invert_patches(patches if patches.dtype == torch.float64 else patches.float())
    return Target(standards.summary(pooler(raw, lengths).to(raw)), patches, registers)


def _add_teacher(
    terms: Terms, teacher: TeacherRecipe, predicted: Target, wanted: Target, lengths: Sequence[int]
) -> None:
    def add(name: str, weight: float, losses_B: Tensor) -> None:
        total = losses_B.sum()
        terms.parts[f"{teacher.label}/{name}"] = total.detach()
        terms.additive = terms.additive + weight * total

    term = teacher.summary
    add("summary", term.weight, errors(predicted.summary, wanted.summary, term.loss, term.error))
    term = teacher.patches
    if term.weight and predicted.patches is not None and wanted.patches is not None:
        per_token = errors(predicted.patches, wanted.patches, term.loss, term.error)
        add("patches", term.weight, image_means(per_token, lengths))
    term = teacher.registers
    if predicted.registers is not None and wanted.registers is not None:
        add("registers", term.weight, errors(predicted.registers, wanted.registers, term.loss, term.error).mean(1))
    if _relates(teacher):
        terms.pairs[teacher.label] = (predicted.summary, wanted.summary)


def relational(
    recipe: Recipe, pairs: Mapping[str, tuple[Tensor, ...]], student: Student | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """pairs: `Terms.pairs` of all images of the global batch, end to end. Weighted mean, and the unweighted parts.

    student: its temperature and bias are asked for by the contrastive term only.
    """
    device = next(iter(pairs.values()))[0].device if pairs else None
    total, parts = torch.zeros((), dtype=torch.float64, device=device), {}
    for teacher in filter(_relates, recipe.teachers):
        loss = _RELATIONS[teacher.relations.kind](*pairs[teacher.label])
        parts[f"{teacher.label}/relations"] = loss.detach()
        total = total + teacher.relations.weight * loss
    if recipe.contrastive is not None:
        from distill.objectives.contrastive import contrastive_loss

        assert student is not None
        scale, bias = student.logit_scale, student.logit_bias
        images, texts, groups = pairs[CONTRASTIVE]
        loss = contrastive_loss(images, texts, scale, bias, recipe.contrastive, groups)
        parts[CONTRASTIVE] = loss.detach()
        total = total + recipe.contrastive.weight * loss
    return total, parts


def part_names(recipe: Recipe, standards: Sequence[Standards]) -> list[str]:
    """Keys of `Terms.parts`, in order: what a rank without images has to add zeros to."""
    names = []
    for teacher, standard in zip(recipe.teachers, standards, strict=True):
        names.append(f"{teacher.label}/summary")
        if standard.patches is not None and teacher.patches.weight:
            names.append(f"{teacher.label}/patches")
        if standard.registers is not None and teacher.registers.weight:
            names.append(f"{teacher.label}/registers")
    return names


def pair_names(recipe: Recipe) -> list[str]:
    """Keys of `Terms.pairs`, in order; none where there is nothing between the pictures of a batch."""
    names = [teacher.label for teacher in recipe.teachers if _relates(teacher)]
    return names + ([CONTRASTIVE] if recipe.contrastive is not None else [])


def _relates(teacher: TeacherRecipe) -> bool:
    return teacher.relations.kind != "none" and teacher.relations.weight > 0
