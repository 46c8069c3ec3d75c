"""What objectives see of a micro-batch: its images, the student's outputs and the teachers' features."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from curate.encoders.student.network.student import Head, Student
from curate.encoders.student.network.vit import VitOutput
from curate.encoders.student.standardise import Target, TargetStandardiser
from distill.objectives.base import module_name
from distill.objectives.kernels.losses import frame_means
from distill.objectives.views import SECOND, WHOLE, Drawn, View, draw, frame_pair

if TYPE_CHECKING:
    from distill.objectives.base import Kind
    from distill.recipe import Recipe
    from distill.samples.batches.loader import Batch
    from distill.samples.classes import ClassIndex

Pooler = Callable[[Tensor, Sequence[int]], Tensor]
"""(patches of all images (N, P), patches per image) -> summaries (B, D); see `Teachers.poolers`."""


@dataclass(frozen=True)
class MicroBatch:
    """Images that pass the model together, and what else objectives need; there may be none."""

    batch: Batch
    targets: Mapping[str, Target]
    """Teachers' features by label, not standardised."""
    tokens: Tensor | None = None
    """Tokens (B, L) of the images' texts, or (B, T, L) of T texts per image; or vectors (B, L) of the texts."""
    groups: Tensor | None = None
    """(B, T + 1): an image and a text whose samples share a number are not negatives of each other, see `same`."""
    draws: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    """(B,): a uniform number of each sample, drawn again in each epoch, for random choices."""
    views: Sequence[View] = (WHOLE,)
    """What passes the model."""
    teacher_texts: Mapping[str, Tensor] = field(default_factory=dict)
    """(B, E), or (B, T, E) of T texts per image, by the label of the teacher whose text tower computed them."""
    classes: Mapping[str, ClassIndex] = field(default_factory=dict)
    """By the label of their objective."""


@dataclass(frozen=True)
class Seen:
    """A view of a micro-batch that has passed the student."""

    drawn: Drawn
    output: VitOutput
    """For each image, and for each frame of a clip."""

    @property
    def hidden(self) -> Tensor:
        """(N',): which patches of the samples are hidden."""
        return torch.from_numpy(self.drawn.hidden).to(self.output.summary.device)

    @property
    def samples(self) -> Tensor:
        """(V,): which samples have this view."""
        return torch.from_numpy(self.drawn.samples).to(self.output.summary.device)


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
    """A micro-batch of B samples (images and clips), as the student and the teachers see it. What several objectives
    use is computed once, when the first asks for it.

    The vectors of a clip, the student's and the teachers', are the means of its frames' vectors, before they are
    normalised or compared (PE: Bolya et al. 2025). Its patches are those of all its frames.
    """

    student: Student
    micro: MicroBatch
    spaces: Mapping[str, TeacherSpace]
    """By the teacher's label."""
    passed: Mapping[View, VitOutput]
    """The student's output for each image, and each frame of a clip, by view."""
    drawn: Mapping[View, Drawn]
    """Empty if only the whole images have passed."""
    _predicted: dict[str, Target] = field(default_factory=dict)
    _targets: dict[str, Target] = field(default_factory=dict)

    @classmethod
    def of(cls, student: Student, micro: MicroBatch, spaces: Mapping[str, TeacherSpace]) -> Outputs:
        """Run the student on all views of the images together. The frames of a clip skip the same branches."""
        batch, device = micro.batch, student.backbone.prefix.device
        if tuple(micro.views) == (WHOLE,):
            draws = micro.draws.repeat(batch.frames) if len(micro.draws) else None
            whole = student(batch.tensor(device), batch.grids, frames=batch.frames, draws=draws)
            return cls(student, micro, spaces, {WHOLE: whole}, {})
        drawn = {view: draw(view, batch, micro.draws) for view in micro.views}
        joined = replace(batch, patches=np.concatenate([own.patches for own in drawn.values()]))
        grids = [grid for own in drawn.values() for grid in own.grids]
        places = [place for own in drawn.values() for place in own.places]
        samples = np.concatenate([own.samples for own in drawn.values()])
        draws = micro.draws[samples].repeat([batch.frames[number] for number in samples])
        output = student(joined.tensor(device), grids, places, _masks(drawn, device), draws=draws)
        passed = _split(output, [len(own.grids) for own in drawn.values()])
        return cls(student, micro, spaces, dict(zip(drawn, passed, strict=True)), drawn)

    @property
    def pictures(self) -> VitOutput:
        """The student's output for each image, and each frame of a clip."""
        return self.passed[WHOLE]

    def view(self, view: View) -> Seen:
        """The student's output for a view, which `needs` must name."""
        return Seen(self.drawn[view], self.passed[view])

    @cached_property
    def image(self) -> VitOutput:
        """The student's output for the samples."""
        own = self.pictures
        if len(own.summary) == len(self.batch.images):
            return own
        return replace(own, summary=self._means(own.summary), registers=self._means(own.registers))

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
        """Patches of each sample (B)."""
        return [len(image.patches) for image in self.batch.images]

    def predicted(self, teacher: str) -> Target:
        """The student's prediction of a teacher's standardised features."""
        if teacher not in self._predicted:
            space = self.spaces[teacher]
            lengths = [rows * columns for rows, columns in self.batch.grids]
            found = space.predicted(self.student.heads[space.number], self.pictures, lengths)
            registers = None if found.registers is None else self._means(found.registers)
            self._predicted[teacher] = self._like_student(Target(self._means(found.summary), found.patches, registers))
        return self._predicted[teacher]

    def target(self, teacher: str) -> Target:
        """A teacher's standardised features."""
        if teacher not in self._targets:
            target = self._like_student(self.micro.targets[teacher])
            self._targets[teacher] = self.spaces[teacher].standardiser(target)
        return self._targets[teacher]

    def noise(self, width: int) -> Tensor:
        """(B, width): standard normal numbers, drawn for each sample."""
        rows = [np.random.default_rng(int(rank)).standard_normal(width) for rank in self.micro.draws]
        return torch.from_numpy(np.array(rows).reshape(-1, width))

    def pair_vectors(self, teacher: str) -> tuple[Tensor, Tensor]:
        """A teacher's vectors of images (B, E) and of texts (B, E) or (B, T, E), as its towers give them."""
        like = self.student.backbone.prefix
        return self.micro.targets[teacher].summary.to(like), self.micro.teacher_texts[teacher].to(like)

    @cached_property
    def image_vectors(self) -> Tensor:
        """(B, E) in the space of the student's text tower, not normalised."""
        return self._means(self._picture_vectors)

    @cached_property
    def frame_vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Two frames of each clip, as `image_vectors` (B, E) each, and whether a sample is a clip (B,), as integers."""
        first, second = self._frame_pairs
        clips = (torch.tensor(self.batch.frames, dtype=torch.int64) > 1).long().to(first.device)
        return self._picture_vectors[first], self._picture_vectors[second], clips

    @cached_property
    def two_views(self) -> tuple[Tensor, Tensor]:
        """Summaries (B, C) of two views of each sample: of an image and of its second crop (the view `SECOND`), of two
        frames of a clip."""
        seen, (first, second) = self.view(SECOND), self._frame_pairs
        crops = self.pictures.summary[second].index_copy(0, seen.samples, seen.output.summary)
        return self.pictures.summary[first], crops

    @cached_property
    def _frame_pairs(self) -> tuple[Tensor, Tensor]:
        """Two frames of each sample (B,), as places in `pictures`; an image twice."""
        frames = self.batch.frames
        pairs = [frame_pair(int(rank), count) for rank, count in zip(self.micro.draws, frames, strict=True)]
        starts = torch.tensor([0, *frames], dtype=torch.int64).cumsum(0)[:-1]
        places = torch.tensor(pairs, dtype=torch.int64).view(-1, 2) + starts[:, None]
        first, second = places.to(self.pictures.summary.device).unbind(1)
        return first, second

    @cached_property
    def _picture_vectors(self) -> Tensor:
        vectors: Tensor = self.student.image_vectors(self.pictures).to(self.student.backbone.prefix.dtype)
        return vectors

    def _means(self, x: Tensor) -> Tensor:
        """(B, …) of the frames' (F, …); not in half precision, which sums would exceed."""
        if len(x) == len(self.batch.images):
            return x
        return frame_means(x.to(self.student.backbone.prefix.dtype), self.batch.frames)

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


def _masks(drawn: Mapping[View, Drawn], device: torch.device) -> dict[str, Tensor]:
    """Which of the patches that pass are masked (N,), for each view with `masked`, by its objective's module."""
    masks, start = {}, 0
    total = sum(len(own.patches) for own in drawn.values())
    for view, own in drawn.items():
        if view.masked is not None:
            mask = np.zeros(total, dtype=bool)
            mask[start : start + len(own.patches)] = own.hidden
            masks[module_name(view.masked)] = torch.from_numpy(mask).to(device)
        start += len(own.patches)
    return masks


def _split(output: VitOutput, counts: Sequence[int]) -> list[VitOutput]:
    """Parts of the outputs; counts: number of images and frames in each part."""
    ends = np.cumsum([0, *counts]).tolist()
    lengths = [output.lengths[start:end] for start, end in pairwise(ends)]
    parts = zip(
        output.summary.split(list(counts)), output.registers.split(list(counts)),
        output.tokens.split([sum(own) for own in lengths]), lengths, strict=True,
    )  # fmt: skip
    return [VitOutput(*part, output.reduced) for part in parts]
