"""The gradient of one global batch: exactly the same for any number of ranks and of micro-batches.

Losses of single images add up, so each micro-batch is forwarded and backwarded on its own, divided by the images of the
global batch. Losses between images need the vectors of all of them: these are gathered detached, every rank computes
the whole loss and takes the gradients of its own rows, which it then sends backward. With one micro-batch its graph is
kept for that; with several, vectors are computed without gradients first and each micro-batch is forwarded again
(GradCache: Gao et al. 2021, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distill.models.student import Student
from distill.objectives.objective import CONTRASTIVE, Terms, pair_names, part_names, relational, student_terms
from distill.recipe import Recipe
from distill.samples.batches.loader import Batch
from distill.teachers import Standards, Target
from distill.training.parallel import World
from distill.training.sharding import sharded

Pairs = Mapping[str, tuple[Tensor, ...]]
_Vector = tuple[str, int, Tensor]
"""Name and side of a pair, and the gradient of its rows."""


@dataclass(frozen=True)
class Micro:
    """Pictures that go through the model at once, with what the teachers say of them."""

    batch: Batch
    targets: Sequence[Target]
    tokens: Tensor | None = None
    """(B, L) of their texts."""
    groups: Tensor | None = None
    """(B, G), as `student_terms` takes them."""


@dataclass
class Gradients:
    """Adds the gradients of global batches to a student's weights; `world.sum_gradients` then completes them."""

    student: Student
    standards: Sequence[Standards]
    recipe: Recipe
    world: World
    poolers: Mapping[str, Any]
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext

    def add(self, micros: Sequence[Micro], images: float) -> dict[str, float]:
        """micros: this rank's, maybe none; images: of the global batch. Sums over it: `loss`, then its parts."""
        rounds = self.world.largest(len(micros)) if sharded(self.student) else len(micros)
        work: list[Micro | None] = [*micros, *[None] * (rounds - len(micros))]
        first, vectors, related = list[Terms](), [list[_Vector]() for _ in work], dict[str, float]()
        if pair_names(self.recipe):
            first = [self._terms(micro, grad=rounds == 1) for micro in work]
            vectors, related = self._between([terms.pairs for terms in first])
        names = ["loss", *part_names(self.recipe, self.standards)]
        sums = dict.fromkeys(names, 0.0)
        for micro, gradients in zip(work, vectors, strict=True):
            terms = first[0] if len(first) == 1 else self._terms(micro)
            _backward(terms, images, gradients)
            sums["loss"] += float(terms.additive.detach())
            for name, value in terms.parts.items():
                sums[name] += float(value)
        found = dict(zip(names, self.world.numbers(sums.values()), strict=True))
        found["loss"] += related.pop("loss", 0.0) * images
        return found | {name: value * images for name, value in related.items()}

    def _terms(self, micro: Micro | None, *, grad: bool = True) -> Terms:
        with torch.set_grad_enabled(grad), self.precision():
            if micro is None:
                return self._idle()
            return student_terms(
                self.student, micro.batch, micro.targets, self.standards, self.recipe, micro.tokens, micro.groups,
                poolers=self.poolers,
            )  # fmt: skip

    def _idle(self) -> Terms:
        """Of no picture, for a rank that only takes part in what sharded weights need."""
        patches = torch.zeros(0, self.recipe.student.patch**2 * 3, dtype=torch.uint8, device=self.world.device)
        output = self.student(patches, [])
        return Terms((output.summary.sum() + output.patches.sum()).double(), {}, {})

    def _between(self, own: Sequence[Pairs]) -> tuple[list[list[_Vector]], dict[str, float]]:
        """The losses between images: gradients of the vectors of each micro-batch, and `loss` with its parts."""
        mine = (
            {
                name: tuple(torch.cat(side) for side in zip(*(pairs[name] for pairs in own if pairs), strict=True))
                for name in pair_names(self.recipe)
            }
            if any(own)
            else {}
        )
        shapes = {name: [(side.shape[1:], side.dtype) for side in sides] for name, sides in mine.items()}
        count = len(next(iter(mine.values()))[0]) if mine else 0
        ranks = self.world.gather((count, shapes))
        counts, known = [number for number, _ in ranks], next(found for number, found in ranks if number)
        leaves: Pairs = {}
        for name, kinds in known.items():
            sides = mine.get(name) or tuple(
                torch.empty(0, *shape, dtype=dtype, device=self.world.device) for shape, dtype in kinds
            )
            leaves[name] = tuple(
                self.world.gather_rows(side, counts).requires_grad_(
                    side.is_floating_point() and (place == 0 or name == CONTRASTIVE)
                )
                for place, side in enumerate(sides)
            )
        loss, parts = relational(self.recipe, leaves, self.student)
        loss.backward()
        if not self.world.first:  # the temperature's gradient is of the whole batch on every rank: it counts once
            self.student.zero_grad(set_to_none=True)
        start, vectors = sum(counts[: self.world.rank]), []
        for pairs in own:
            stop = start + (len(next(iter(pairs.values()))[0]) if pairs else 0)
            vectors.append([
                (name, place, leaf.grad[start:stop])
                for name, sides in leaves.items() if pairs
                for place, leaf in enumerate(sides) if leaf.grad is not None
            ])  # fmt: skip
            start = stop
        return vectors, {"loss": float(loss.detach()), **{name: float(value) for name, value in parts.items()}}


def _backward(terms: Terms, images: float, vectors: Sequence[_Vector]) -> None:
    roots, gradients = [terms.additive / images], [torch.ones_like(terms.additive)]
    for name, place, gradient in vectors:
        roots.append(terms.pairs[name][place])
        gradients.append(gradient.to(roots[-1]))
    reached = [number for number, root in enumerate(roots) if root.requires_grad]
    torch.autograd.backward([roots[number] for number in reached], [gradients[number] for number in reached])
