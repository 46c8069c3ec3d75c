"""Teachers' features brought to one scale, and back: PHI-S (Ranzinger et al. 2024), or a centre and a scale alone.

Otherwise the teacher with the greatest variance would take most of the student.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from curate.core.errors import InputError
from curate.core.hashing import ranks_of_words
from distill.recipe import TeacherRecipe
from distill.samples.images.images import Picture, Skipped
from distill.teachers.base import Shape, Target
from distill.teachers.hadamard import hadamard
from distill.teachers.moments import Moments
from distill.teachers.panel import Teachers

if TYPE_CHECKING:
    from distill.training.parallel import World  # an exported model needs no torch.distributed

_LOG = logging.getLogger("distill")
_EQUAL = 1e-10
"""Eigenvalues that follow one another more closely, as a share of the largest, count as one."""
_SALT = 0xF1C5
_CONSTANT = 1e-12
"""Variance over squared mean below which features count as constant: they are centred, but not scaled."""


@dataclass
class Standard:
    """y = R (x - mean) / scale for rows x (…, C): unit variance on average, of every single channel with a rotation.

    PHI-S: R = H Uᵀ, U the covariance's eigenvectors, H an orthonormal Hadamard matrix, and scale² the mean of the
    eigenvalues. Squared error does not see R, nor does cosine; an error per channel does. A kind with several vectors
    a picture that must not be mixed (registers) has a mean for each, (R, C).
    """

    mean: Tensor
    scale: Tensor
    rotation: Tensor | None = None
    """(C, C) float64, orthonormal."""
    _cast: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor, Tensor | None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, features: Tensor) -> Tensor:
        mean, scale, rotation = self._like(features)
        y = (features - mean) / scale
        return y if rotation is None else _product(y, rotation.T)

    def invert(self, features: Tensor) -> Tensor:
        mean, scale, rotation = self._like(features)
        y = features if rotation is None else _product(features, rotation)
        return y * scale + mean

    def _like(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        place = (features.dtype, features.device)
        if place not in self._cast:
            rotation = None if self.rotation is None else self.rotation.to(features)
            self._cast[place] = (self.mean.to(features), self.scale.to(features), rotation)
        return self._cast[place]


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    """Targets keep their precision under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return x @ matrix


@dataclass
class Standards:
    """Of one teacher, by kind; None for kinds that it does not have."""

    summary: Standard
    patches: Standard | None = None
    registers: Standard | None = None

    def __call__(self, target: Target) -> Target:
        patches = self.patches(target.patches) if self.patches and target.patches is not None else None
        registers = self.registers(target.registers) if self.registers and target.registers is not None else None
        return Target(self.summary(target.summary), patches, registers)

    def invert_summary(self, summary_BD: Tensor) -> Tensor:
        return self.summary.invert(summary_BD)

    def invert_patches(self, patches_NP: Tensor) -> Tensor:
        """Of a teacher that has patches."""
        assert self.patches is not None
        return self.patches.invert(patches_NP)

    def state(self) -> dict[str, Tensor]:
        """For checkpoints and exports; `of` reads it."""
        state: dict[str, Tensor] = {}
        for name, kind in zip(("summary", "patches", "registers"), self._kinds(), strict=True):
            if kind is not None:
                state |= {f"{name}_mean": kind.mean, f"{name}_scale": kind.scale}
                state |= {} if kind.rotation is None else {f"{name}_rotation": kind.rotation}
        return state

    @classmethod
    def of(cls, state: dict[str, Tensor]) -> Standards:
        def kind(name: str) -> Standard | None:
            if f"{name}_mean" not in state:
                return None
            return Standard(state[f"{name}_mean"], state[f"{name}_scale"], state.get(f"{name}_rotation"))

        summary = kind("summary")
        assert summary is not None
        return cls(summary, kind("patches"), kind("registers"))

    def _kinds(self) -> tuple[Standard, Standard | None, Standard | None]:
        return self.summary, self.patches, self.registers


def fit_standards(
    teachers: Teachers,
    recipes: Sequence[TeacherRecipe],
    batches: Iterable[tuple[Sequence[Picture], Sequence[Skipped]]],
    world: World,
) -> list[Standards]:
    """Of each teacher, over this rank's pictures in `batches` and every other rank's; the same on all ranks.

    Raises InputError, on all of them, where no picture could be read.
    """
    fits = [_Fit(recipe, shape) for recipe, shape in zip(recipes, teachers.shapes, strict=True)]
    reasons: Counter[str] = Counter()
    seen, example = 0, ""
    for pictures, skipped in batches:
        seen += len(pictures)
        reasons.update(item.reason for item in skipped)
        example = example or next((item.detail for item in skipped), "")
        if pictures:
            for fit, target in zip(fits, teachers.targets(pictures), strict=True):
                fit.add(target)
    _need_pictures(world, seen, reasons, example)
    found = [fit.standards(world) for fit in fits]
    for recipe, fit in zip(recipes, fits, strict=True):
        if world.first and fit.constant:
            what = "teachers: %s says the same of all %d pictures on which it was to be standardised; of its summaries "
            _LOG.warning(what + "nothing can be learnt", recipe.label, int(fit.summary.count))
    return found


def _need_pictures(world: World, seen: int, reasons: Counter[str], example: str) -> None:
    found = world.gather((seen, reasons, example))
    if not sum(count for count, _, _ in found):
        total = sum((own for _, own, _ in found), Counter[str]())
        said = ", ".join(f"{reason} {count}" for reason, count in total.most_common())
        first = next((own for _, _, own in found if own), "")
        raise InputError(
            f"data.sources: none of the {total.total()} pictures on which teachers were to be standardised could be "
            f"used ({said}; such as {first}); mend the dataset"
        )


class _Fit:
    """Moments of one teacher's kinds."""

    def __init__(self, recipe: TeacherRecipe, shape: Shape) -> None:
        self.how, self.shape = recipe.standardise, shape
        whole = recipe.standardise == "phi_s"
        self.summary = Moments(shape.summary, covariance=whole)
        self.patches = Moments(shape.patches, covariance=whole) if shape.patches else None
        self.registers = Moments(shape.registers * shape.summary, covariance=False) if shape.registers else None

    def add(self, target: Target) -> None:
        if self.how == "none":
            return
        self.summary.add(target.summary)
        if self.patches is not None and target.patches is not None:
            self.patches.add(target.patches)
        if self.registers is not None and target.registers is not None:
            self.registers.add(target.registers.flatten(1))

    @property
    def constant(self) -> bool:
        """Whether the summaries that were seen do not differ."""
        return self.how != "none" and not _varies(self.summary)

    def standards(self, world: World) -> Standards:
        registers = _standard(self.registers, world)
        if registers is not None:
            registers = Standard(registers.mean.view(self.shape.registers, -1), registers.scale)
        summary = _standard(self.summary, world)
        assert summary is not None
        return Standards(summary, _standard(self.patches, world), registers)


def _standard(moments: Moments | None, world: World) -> Standard | None:
    """The identity of moments that were told nothing."""
    if moments is None:
        return None
    moments.merge(world)
    scale = _variance(moments).sqrt() if _varies(moments) else torch.ones((), dtype=torch.float64)
    rotation = _rotation(moments.scatter / moments.count.clamp(min=1.0), world) if moments.covariance else None
    return Standard(moments.mean, scale, rotation)


def _variance(moments: Moments) -> Tensor:
    """Mean over the channels."""
    scatter = moments.scatter.diagonal() if moments.covariance else moments.scatter
    return (scatter / moments.count.clamp(min=1.0)).mean()


def _varies(moments: Moments) -> bool:
    return bool(_variance(moments) > _CONSTANT * moments.mean.square().mean())


def _rotation(covariance_CC: Tensor, world: World) -> Tensor:
    """H Uᵀ as the first rank finds it."""
    rotation = torch.zeros_like(covariance_CC)
    if world.first:
        vectors = eigenvectors(covariance_CC)
        matrix = hadamard(len(vectors))
        assert matrix is not None
        rotation = torch.from_numpy(matrix).double() / len(vectors) ** 0.5 @ vectors.T
    return world.sum(rotation.to(world.device)).cpu()


def eigenvectors(covariance_CC: Tensor) -> Tensor:
    """As columns, by rising eigenvalue; the same, nearly, for a matrix that differs in the last bits.

    Any basis of the vectors of one eigenvalue would do, -v for v above all, and of fewer samples than dimensions there
    are many of the eigenvalue 0: which one a library finds depends on rounding. Here it is the one nearest to fixed
    vectors: their projections onto that space, made orthonormal together (Löwdin 1950).
    """
    values, vectors = torch.linalg.eigh(covariance_CC)
    fixed = _fixed_vectors(len(values))
    apart = values.diff() > _EQUAL * values[-1].clamp(min=torch.finfo(values.dtype).tiny)
    ends = [*(apart.nonzero().flatten() + 1).tolist(), len(values)]
    start, found = 0, []
    for end in ends:
        own = vectors[:, start:end]
        left, _, right = torch.linalg.svd(own.T @ fixed[:, start:end])
        found.append(own @ (left @ right))
        start = end
    return torch.cat(found, 1)


@lru_cache(maxsize=4)
def _fixed_vectors(width: int) -> Tensor:
    """(C, C) numbers that look random and are the same everywhere."""
    words = np.stack([np.repeat(np.arange(width), width), np.tile(np.arange(width), width)], axis=1)
    uniform = ranks_of_words(0, words.astype(np.uint64), _SALT).reshape(width, width) / 2.0**64
    return torch.from_numpy(uniform - 0.5)
