"""The training objective: terms of single images, which add up, and terms between the images of the global batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from curate.encoders.student.network.student import Head, Student
from curate.encoders.student.network.vit import VitOutput
from curate.encoders.student.standardise import Target, TargetStandardiser
from distill.objectives.losses import errors, image_means
from distill.objectives.relations import arkd, rkd
from distill.recipe import Recipe, TeacherRecipe
from distill.samples.batches.loader import Batch

Pooler = Callable[[Tensor, Sequence[int]], Tensor]
"""(patches of all images (N, P), patches per image) -> summaries (B, D); see `Teachers.poolers`."""

_RELATIONS = {"arkd": arkd, "rkd": rkd}
CONTRASTIVE = "contrastive"
OBSERVED = 1024
"""Images whose relations are observed in a step: pairs grow with the square, and nothing is learned from them."""


@dataclass
class Terms:
    """Terms of the images of a batch share, as sums: the caller divides by the number of images in the global batch."""

    additive: Tensor
    """Weighted sum over teachers and kinds of features, float64, with a gradient."""
    parts: dict[str, Tensor]
    """Unweighted and detached terms, by `part_names`."""
    pairs: dict[str, tuple[Tensor, ...]]
    """Vectors for `relational`, by `pair_names`: the student's (B, D), with a gradient, and a teacher's summaries,
    without a gradient; for the contrastive term vectors of images and of texts, with gradients, and `groups`."""
    observed: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    """Detached vectors for `observed_relations`, by `observed_names`."""


def student_terms(
    student: Student,
    batch: Batch,
    targets: Sequence[Target],
    standardisers: Sequence[TargetStandardiser],
    recipe: Recipe,
    tokens: Tensor | None = None,
    groups: Tensor | None = None,
    *,
    poolers: Mapping[str, Pooler] | None = None,
) -> Terms:
    """Run the student on a batch and compute the terms of its images.

    targets: one per teacher, not standardised; tokens: (B, L) of the images' texts, or (B, T, L) of T texts per image;
    groups (B, T + 1): samples that share a number are not negatives of each other (see contrastive_loss).
    """
    device, dtype = student.backbone.prefix.device, student.backbone.prefix.dtype
    output = student(batch.tensor(device), batch.grids)
    lengths = [rows * columns for rows, columns in batch.grids]
    terms = Terms(torch.zeros((), dtype=torch.float64, device=device), {}, {})
    for number, teacher in enumerate(recipe.teachers):
        pooler = (poolers or {})[teacher.label] if teacher.pooler else None
        predicted = _predicted(student.heads[number], output, lengths, teacher, standardisers[number], pooler)
        target = standardisers[number](targets[number].to(device, dtype))
        _add_teacher(terms, teacher, predicted.to(device, dtype), target, lengths)
    if recipe.contrastive is not None:
        assert student.text is not None and tokens is not None and groups is not None
        images, texts = student.project(output.summary).to(dtype), student.text(tokens.flatten(0, -2)).to(dtype)
        terms.pairs[CONTRASTIVE] = images, texts.unflatten(0, tokens.shape[:-1]), groups
    return terms


def _predicted(
    head: Head,
    output: VitOutput,
    lengths: Sequence[int],
    teacher: TeacherRecipe,
    standardiser: TargetStandardiser,
    pooler: Pooler | None,
) -> Target:
    """The student's prediction of a teacher's standardised features, of the kinds with a weight."""
    needs_patches = standardiser.patches is not None and (teacher.patches.weight > 0 or pooler is not None)
    patches = head.patches(output.patches) if needs_patches else None
    needs_registers = standardiser.registers is not None and teacher.registers.weight > 0
    registers = head.registers(output.registers) if needs_registers else None
    if pooler is None:
        return Target(head.summary(output.summary), patches, registers)
    assert patches is not None
    raw = standardiser.invert_patches(patches if patches.dtype == torch.float64 else patches.float())
    return Target(standardiser.summary(pooler(raw, lengths).to(raw)), patches, registers)


def _add_teacher(
    terms: Terms, teacher: TeacherRecipe, predicted: Target, target: Target, lengths: Sequence[int]
) -> None:
    def add(name: str, weight: float, losses_B: Tensor) -> None:
        total = losses_B.sum()
        terms.parts[f"{teacher.label}/{name}"] = total.detach()
        terms.additive = terms.additive + weight * total

    term = teacher.summary
    add("summary", term.weight, errors(predicted.summary, target.summary, term.loss, term.error))
    term = teacher.patches
    if term.weight and predicted.patches is not None and target.patches is not None:
        per_token = errors(predicted.patches, target.patches, term.loss, term.error)
        add("patches", term.weight, image_means(per_token, lengths))
    term = teacher.registers
    if predicted.registers is not None and target.registers is not None:
        add("registers", term.weight, errors(predicted.registers, target.registers, term.loss, term.error).mean(1))
    vectors = (predicted.summary, target.summary)
    if _has_relations(teacher):
        terms.pairs[teacher.label] = vectors
    else:
        terms.observed[teacher.label] = tuple(side.detach() for side in vectors)


def relational(
    recipe: Recipe, pairs: Mapping[str, tuple[Tensor, ...]], student: Student | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted sum of the terms between images, which are means over pairs, and the unweighted terms.

    pairs: `Terms.pairs` of all images in the global batch, concatenated; student: only the contrastive term needs its
    temperature and bias.
    """
    device = next(iter(pairs.values()))[0].device if pairs else None
    total, parts = torch.zeros((), dtype=torch.float64, device=device), {}
    for teacher in filter(_has_relations, recipe.teachers):
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


def observed_relations(recipe: Recipe, pairs: Mapping[str, tuple[Tensor, ...]]) -> dict[str, Tensor]:
    """Unweighted relational terms of the teachers that the student is not trained on with them (AMoE, Fig. 5): of the
    teacher's kind, or ARKD. pairs: `Terms.observed` of all images in the global batch, of which the first are used."""
    with torch.no_grad():
        return {
            f"{teacher.label}/relations": _RELATIONS.get(teacher.relations.kind, arkd)(
                *(side[:OBSERVED] for side in pairs[teacher.label])
            )
            for teacher in recipe.teachers
            if not _has_relations(teacher)
        }


def part_names(recipe: Recipe, standardisers: Sequence[TargetStandardiser]) -> list[str]:
    """Keys of `Terms.parts`, in order; a rank without images adds zeros for them."""
    names = []
    for teacher, standardiser in zip(recipe.teachers, standardisers, strict=True):
        names.append(f"{teacher.label}/summary")
        if standardiser.patches is not None and teacher.patches.weight:
            names.append(f"{teacher.label}/patches")
        if standardiser.registers is not None and teacher.registers.weight:
            names.append(f"{teacher.label}/registers")
    return names


def pair_names(recipe: Recipe) -> list[str]:
    """Keys of `Terms.pairs`, in order; empty without terms between images."""
    names = [teacher.label for teacher in recipe.teachers if _has_relations(teacher)]
    return names + ([CONTRASTIVE] if recipe.contrastive is not None else [])


def observed_names(recipe: Recipe) -> list[str]:
    """Keys of `Terms.observed`, in order."""
    return [teacher.label for teacher in recipe.teachers if not _has_relations(teacher)]


def _has_relations(teacher: TeacherRecipe) -> bool:
    return teacher.relations.kind != "none" and teacher.relations.weight > 0
