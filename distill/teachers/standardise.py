"""Fits the standardisation of teachers' features: PHI-S (Ranzinger et al. 2024), or mean and scale only.

Without it, the teacher with the greatest variance would dominate the loss.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from curate.core.errors import InputError
from curate.core.hashing import ranks_of_words
from curate.encoders.student.standardise import Standardiser, Target, TargetStandardiser
from distill.parallel import World
from distill.recipe import TeacherRecipe
from distill.samples.images.reader import PatchedImage, Skipped
from distill.teachers.base import Shape
from distill.teachers.hadamard import hadamard
from distill.teachers.moments import Moments
from distill.teachers.teachers import Teachers

_LOG = logging.getLogger("distill")
_EQUAL = 1e-10
"""Eigenvalues count as equal if they differ by less than this fraction of the largest one."""
_SALT = 0xF1C5
_CONSTANT = 1e-12
"""Features with a ratio of variance to squared mean below this are constant: they are centred, but not scaled."""


def fit_standardisers(
    teachers: Teachers,
    recipes: Sequence[TeacherRecipe],
    batches: Iterable[tuple[Sequence[PatchedImage], Sequence[Skipped]]],
    world: World,
    only: Mapping[str, NDArray[np.int64]] | None = None,
) -> list[TargetStandardiser]:
    """Standardisers of each teacher, fitted on the `batches` of all ranks; the same on all ranks.

    only: rows of the images that count for a kind of features; all images count for the kinds that are not in it.
    Raises InputError, on all ranks, if there is no readable image.
    """
    fits = [_Fit(recipe, shape) for recipe, shape in zip(recipes, teachers.shapes, strict=True)]
    reasons: Counter[str] = Counter()
    count, example = 0, ""
    for images, skipped in batches:
        count += len(images)
        reasons.update(item.reason for item in skipped)
        example = example or next((item.detail for item in skipped), "")
        if images:
            for fit, target in zip(fits, teachers.targets(images), strict=True):
                fit.add(_restricted(target, images, only) if only else target)
    _check_images(world, count, reasons, example)
    fitted = [fit.standardiser(world) for fit in fits]
    for recipe, fit in zip(recipes, fits, strict=True):
        if world.first and fit.constant:
            message = "teachers: the summaries of %s are the same for all %d images of the standardisation; "
            _LOG.warning(message + "the student cannot learn from them", recipe.label, int(fit.summary.count))
    return fitted


def _restricted(target: Target, images: Sequence[PatchedImage], only: Mapping[str, NDArray[np.int64]]) -> Target:
    """The features of the images in `only`."""
    rows = np.array([image.row for image in images])
    used = {kind: torch.from_numpy(np.isin(rows, chosen)) for kind, chosen in only.items()}
    summary, patches, registers = target.summary, target.patches, target.registers
    if "summary" in used:
        summary = summary[used["summary"]]
    if "patches" in used and patches is not None:
        counts = torch.tensor([len(image.patches) for image in images])
        patches = patches[used["patches"].repeat_interleave(counts)]
    if "registers" in used and registers is not None:
        registers = registers[used["registers"]]
    return Target(summary, patches, registers)


def _check_images(world: World, count: int, reasons: Counter[str], example: str) -> None:
    ranks = world.gather((count, reasons, example))
    if not sum(number for number, _, _ in ranks):
        total = sum((own for _, own, _ in ranks), Counter[str]())
        counts = ", ".join(f"{reason} {number}" for reason, number in total.most_common())
        first = next((own for _, _, own in ranks if own), "")
        raise InputError(
            f"data.sources: none of the {total.total()} images for the standardisation of teachers could be used "
            f"({counts}; such as {first}); fix the dataset"
        )


class _Fit:
    """Moments of one teacher's summaries, patches and registers."""

    def __init__(self, recipe: TeacherRecipe, shape: Shape) -> None:
        self.shape = shape
        self.kinds = recipe.kinds
        rotated = self.kinds if recipe.standardise == "phi_s" else []
        self.summary = Moments(shape.summary, covariance="summary" in rotated)
        self.patches = Moments(shape.patches, covariance="patches" in rotated) if shape.patches else None
        self.registers = Moments(shape.registers * shape.summary, covariance=False) if shape.registers else None

    def add(self, target: Target) -> None:
        if "summary" in self.kinds:
            self.summary.add(target.summary)
        if "patches" in self.kinds and self.patches is not None and target.patches is not None:
            self.patches.add(target.patches)
        if "registers" in self.kinds and self.registers is not None and target.registers is not None:
            self.registers.add(target.registers.flatten(1))

    @property
    def constant(self) -> bool:
        """Whether all summaries are equal."""
        return "summary" in self.kinds and not _varies(self.summary)

    def standardiser(self, world: World) -> TargetStandardiser:
        summary = standardiser_of(self.summary, world)
        patches = registers = None
        if self.patches is not None:
            patches = standardiser_of(self.patches, world)
        if self.registers is not None:
            registers = standardiser_of(self.registers, world)
            registers = Standardiser(registers.mean.view(self.shape.registers, -1), registers.scale)
        return TargetStandardiser(summary, patches, registers)


def standardiser_of(moments: Moments, world: World) -> Standardiser:
    """The identity for moments without features; with a rotation if they have a covariance."""
    moments.merge(world)
    scale = _variance(moments).sqrt() if _varies(moments) else torch.ones((), dtype=torch.float64)
    rotation = _rotation(moments.scatter / moments.count.clamp(min=1.0), world) if moments.covariance else None
    return Standardiser(moments.mean, scale, rotation)


def _variance(moments: Moments) -> Tensor:
    """Mean variance over the channels."""
    scatter = moments.scatter.diagonal() if moments.covariance else moments.scatter
    return (scatter / moments.count.clamp(min=1.0)).mean()


def _varies(moments: Moments) -> bool:
    return bool(_variance(moments) > _CONSTANT * moments.mean.square().mean())


def _rotation(covariance_CC: Tensor, world: World) -> Tensor:
    """H Uᵀ, computed on rank 0: the eigenvectors of another rank could differ in the last bits."""
    rotation = torch.zeros_like(covariance_CC)
    if world.first:
        vectors = eigenvectors(covariance_CC)
        matrix = hadamard(len(vectors))
        assert matrix is not None
        rotation = torch.from_numpy(matrix).double() / len(vectors) ** 0.5 @ vectors.T
    return world.sum(rotation.to(world.device)).cpu()


def eigenvectors(covariance_CC: Tensor) -> Tensor:
    """Eigenvectors as columns, by ascending eigenvalue; nearly the same for a matrix that differs in the last bits.

    The eigenvectors of one eigenvalue are unique only up to a basis of their space (such as -v for v), and with fewer
    samples than dimensions many have the eigenvalue 0; which basis a library returns depends on rounding. This function
    chooses the basis nearest to fixed vectors: their projections onto the space, orthonormalised (Löwdin 1950).
    """
    values, vectors = torch.linalg.eigh(covariance_CC)
    fixed = _fixed_vectors(len(values))
    apart = values.diff() > _EQUAL * values[-1].clamp(min=torch.finfo(values.dtype).tiny)
    ends = [*(apart.nonzero().flatten() + 1).tolist(), len(values)]
    start, bases = 0, []
    for end in ends:
        own = vectors[:, start:end]
        left, _, right = torch.linalg.svd(own.T @ fixed[:, start:end])
        bases.append(own @ (left @ right))
        start = end
    return torch.cat(bases, 1)


@lru_cache(maxsize=4)
def _fixed_vectors(width: int) -> Tensor:
    """(C, C) pseudorandom numbers, the same on every machine."""
    words = np.stack([np.repeat(np.arange(width), width), np.tile(np.arange(width), width)], axis=1)
    uniform = ranks_of_words(0, words.astype(np.uint64), _SALT).reshape(width, width) / 2.0**64
    return torch.from_numpy(uniform - 0.5)
