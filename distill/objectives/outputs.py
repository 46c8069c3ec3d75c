"""What objectives see of a micro-batch: its images, the student's outputs and the teachers' features."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curate.encoders.student.network.student import Head, Student
from curate.encoders.student.network.vit import VitOutput
from curate.encoders.student.standardise import Target, TargetStandardiser

if TYPE_CHECKING:
    from distill.objectives.base import Kind
    from distill.recipe import Recipe
    from distill.samples.batches.loader import Batch

Pooler = Callable[[Tensor, Sequence[int]], Tensor]
"""(patches of all images (N, P), patches per image) -> summaries (B, D); see `Teachers.poolers`."""


@dataclass(frozen=True)
class MicroBatch:
    """Images that pass the model together, and what else objectives need; there may be none."""

    batch: Batch
    targets: Mapping[str, Target]
    """Teachers' features by label, not standardised."""
    tokens: Tensor | None = None
    """Tokens (B, L) of the images' texts, or (B, T, L) of T texts per image."""
    groups: Tensor | None = None
    """(B, T + 1): an image and a text whose samples share a number are not negatives of each other, see `same`."""


@dataclass(frozen=True)
class TeacherSpace:
    """The space of a teacher's standardised features, which a head of the student predicts."""

    number: int
    """Its head is `student.heads[number]`."""
    kinds: Collection[Kind]
    """Kinds of features to predict, if the teacher has them; the summary always."""
    standardiser: TargetStandardiser
    pooler: Pooler | None = None
    """The teacher's own pooler, if that computes the summary from the predicted patches."""

    def predicted(self, head: Head, output: VitOutput, lengths: Sequence[int]) -> Target:
        standardiser = self.standardiser
        needs_patches = standardiser.patches is not None and "patches" in self.kinds
        patches = head.patches(output.patches) if needs_patches else None
        needs_registers = standardiser.registers is not None and "registers" in self.kinds
        registers = head.registers(output.registers) if needs_registers else None
        if self.pooler is None:
            return Target(head.summary(output.summary), patches, registers)
        assert patches is not None
        raw = standardiser.invert_patches(patches if patches.dtype == torch.float64 else patches.float())
        return Target(standardiser.summary(self.pooler(raw, lengths).to(raw)), patches, registers)


def spaces_of(
    recipe: Recipe, standardisers: Sequence[TargetStandardiser], poolers: Mapping[str, Pooler]
) -> dict[str, TeacherSpace]:
    """The spaces of a recipe's teachers by label. standardisers: one per teacher; poolers: by label, of teachers with
    `pooler` and perhaps of others."""
    kinds, spaces = recipe.needs.features, dict[str, TeacherSpace]()
    for number, (teacher, standardiser) in enumerate(zip(recipe.teachers, standardisers, strict=True)):
        pooler = poolers[teacher.label] if teacher.pooler else None
        spaces[teacher.label] = TeacherSpace(number, kinds[teacher.label], standardiser, pooler)
    return spaces


@dataclass
class Outputs:
    """A micro-batch of B images, as the student and the teachers see it. What several objectives use is computed once,
    when the first asks for it."""

    student: Student
    micro: MicroBatch
    spaces: Mapping[str, TeacherSpace]
    """By the teacher's label."""
    image: VitOutput
    """The student's output for the images."""
    _predicted: dict[str, Target] = field(default_factory=dict)
    _targets: dict[str, Target] = field(default_factory=dict)

    @classmethod
    def of(cls, student: Student, micro: MicroBatch, spaces: Mapping[str, TeacherSpace]) -> Outputs:
        """Run the student on the images."""
        image = student(micro.batch.tensor(student.backbone.prefix.device), micro.batch.grids)
        return cls(student, micro, spaces, image)

    @property
    def batch(self) -> Batch:
        return self.micro.batch

    @property
    def groups(self) -> Tensor:
        """(B, T + 1) numbers of samples that are alike, see `MicroBatch`."""
        assert self.micro.groups is not None
        return self.micro.groups

    @property
    def lengths(self) -> list[int]:
        """Patches of each image (B)."""
        return [rows * columns for rows, columns in self.batch.grids]

    def predicted(self, teacher: str) -> Target:
        """The student's prediction of a teacher's standardised features."""
        if teacher not in self._predicted:
            space = self.spaces[teacher]
            found = space.predicted(self.student.heads[space.number], self.image, self.lengths)
            self._predicted[teacher] = self._like_student(found)
        return self._predicted[teacher]

    def target(self, teacher: str) -> Target:
        """A teacher's standardised features."""
        if teacher not in self._targets:
            target = self._like_student(self.micro.targets[teacher])
            self._targets[teacher] = self.spaces[teacher].standardiser(target)
        return self._targets[teacher]

    @cached_property
    def image_vectors(self) -> Tensor:
        """(B, E) in the space of the student's text tower, not normalised."""
        vectors: Tensor = self.student.project(self.image.summary).to(self.student.backbone.prefix.dtype)
        return vectors

    @cached_property
    def text_vectors(self) -> Tensor:
        """(B, E) in the space of the images, or (B, T, E) with T texts per image, not normalised."""
        tokens = self.micro.tokens
        assert self.student.text is not None and tokens is not None
        vectors: Tensor = self.student.text(tokens.flatten(0, -2)).to(self.student.backbone.prefix.dtype)
        return vectors.unflatten(0, tokens.shape[:-1])

    def _like_student(self, target: Target) -> Target:
        prefix = self.student.backbone.prefix
        return target.to(prefix.device, prefix.dtype)
