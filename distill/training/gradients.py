"""The gradient of one global batch, the same for any number of ranks and of micro-batches.

Losses of single images add up, so each micro-batch has a separate forward and backward pass; losses are divided by the
number of images in the global batch. Losses between images need the vectors of all images: the ranks gather them
detached, each computes the total loss, and backpropagates the gradients of the rows it owns. A single micro-batch keeps
its graph for this; with several, vectors are first computed without gradients, then each micro-batch runs forward again
(GradCache: Gao et al. 2021, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from curate.encoders.student.network.student import Student
from distill.objectives.objective import (
    CONTRASTIVE,
    Terms,
    observed_names,
    observed_relations,
    pair_names,
    part_names,
    relational,
    student_terms,
)
from distill.parallel import World
from distill.recipe import Recipe
from distill.samples.batches.loader import Batch
from distill.teachers import Target, TargetStandardiser
from distill.training.sharding import sharded

Pairs = Mapping[str, tuple[Tensor, ...]]
_Vector = tuple[str, int, Tensor]
"""Name and side of a pair of vectors, and the gradient of the vectors."""


@dataclass(frozen=True)
class MicroBatch:
    """Images that pass the model together, with their targets."""

    batch: Batch
    targets: Sequence[Target]
    tokens: Tensor | None = None
    """Tokens of their texts, see `student_terms`."""
    groups: Tensor | None = None
    """(B, G), see `student_terms`."""


@dataclass
class Gradients:
    """Adds the gradients of global batches to a student's weights; `world.sum_gradients` then completes them."""

    student: Student
    standardisers: Sequence[TargetStandardiser]
    recipe: Recipe
    world: World
    poolers: Mapping[str, Any]
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext

    def add(self, micros: Sequence[MicroBatch], images: float) -> dict[str, float]:
        """Backpropagate this rank's micro-batches, if any; images: number in the global batch.

        Returns sums over the global batch: `loss`, then its parts.
        """
        rounds = self.world.largest(len(micros)) if sharded(self.student) else len(micros)
        work: list[MicroBatch | None] = [*micros, *[None] * (rounds - len(micros))]
        first, vectors, relations = list[Terms](), [list[_Vector]() for _ in work], dict[str, float]()
        if pair_names(self.recipe):
            first = [self._terms(micro, grad=rounds == 1) for micro in work]
            vectors, relations = self._pair_gradients([terms.pairs for terms in first])
        names = ["loss", *part_names(self.recipe, self.standardisers)]
        sums, observed = dict.fromkeys(names, 0.0), list[Pairs]()
        for micro, gradients in zip(work, vectors, strict=True):
            terms = first[0] if len(first) == 1 else self._terms(micro)
            observed.append(terms.observed)
            _backward(terms, images, gradients)
            sums["loss"] += float(terms.additive.detach())
            for name, value in terms.parts.items():
                sums[name] += float(value)
        totals = dict(zip(names, self.world.numbers(sums.values()), strict=True))
        totals["loss"] += relations.pop("loss", 0.0) * images
        if observed_names(self.recipe):
            every, _ = self._gathered(observed, observed_names(self.recipe))
            relations |= {name: float(value) for name, value in observed_relations(self.recipe, every).items()}
        return totals | {name: value * images for name, value in relations.items()}

    def _terms(self, micro: MicroBatch | None, *, grad: bool = True) -> Terms:
        with torch.set_grad_enabled(grad), self.precision():
            if micro is None:
                return self._empty_terms()
            return student_terms(
                self.student, micro.batch, micro.targets, self.standardisers, self.recipe, micro.tokens, micro.groups,
                poolers=self.poolers,
            )  # fmt: skip

    def _empty_terms(self) -> Terms:
        """Terms of an empty batch, for a rank without images that takes part in the collectives of sharded weights."""
        patches = torch.zeros(0, self.recipe.student.patch**2 * 3, dtype=torch.uint8, device=self.world.device)
        output = self.student(patches, [])
        return Terms((output.summary.sum() + output.patches.sum()).double(), {}, {})

    def _pair_gradients(self, own: Sequence[Pairs]) -> tuple[list[list[_Vector]], dict[str, float]]:
        """Losses between images: gradients of the vectors of each micro-batch, and the mean `loss` with its parts."""
        leaves, counts = self._gathered(own, pair_names(self.recipe))
        for name, sides in leaves.items():
            for number, side in enumerate(sides):
                side.requires_grad_(side.is_floating_point() and (number == 0 or name == CONTRASTIVE))
        loss, parts = relational(self.recipe, leaves, self.student)
        loss.backward()
        if not self.world.first:  # each rank has the temperature's gradient of the whole batch: count it once
            self.student.zero_grad(set_to_none=True)
        start, vectors = sum(counts[: self.world.rank]), []
        for pairs in own:
            stop = start + (len(next(iter(pairs.values()))[0]) if pairs else 0)
            vectors.append([
                (name, number, leaf.grad[start:stop])
                for name, sides in leaves.items() if pairs
                for number, leaf in enumerate(sides) if leaf.grad is not None
            ])  # fmt: skip
            start = stop
        return vectors, {"loss": float(loss.detach()), **{name: float(value) for name, value in parts.items()}}

    def _gathered(self, own: Sequence[Pairs], names: Sequence[str]) -> tuple[dict[str, tuple[Tensor, ...]], list[int]]:
        """Vectors of all images of the global batch, detached, by name; and the number of images of each rank.

        own: the vectors of this rank's micro-batches; empty for one without images. A collective."""
        mine: dict[str, tuple[Tensor, ...]] = {}
        if any(own):
            for name in names:
                parts = zip(*(pairs[name] for pairs in own if pairs), strict=True)
                mine[name] = tuple(torch.cat(part) for part in parts)
        shapes = {name: [(side.shape[1:], side.dtype) for side in sides] for name, sides in mine.items()}
        count = len(next(iter(mine.values()))[0]) if mine else 0
        ranks = self.world.gather((count, shapes))
        counts, known = [number for number, _ in ranks], next(found for number, found in ranks if number)
        every: dict[str, tuple[Tensor, ...]] = {}
        for name, kinds in known.items():
            sides = mine.get(name) or tuple(
                torch.empty(0, *shape, dtype=dtype, device=self.world.device) for shape, dtype in kinds
            )
            every[name] = tuple(self.world.gather_rows(side, counts) for side in sides)
        return every, counts


def _backward(terms: Terms, images: float, vectors: Sequence[_Vector]) -> None:
    roots, gradients = [terms.additive / images], [torch.ones_like(terms.additive)]
    for name, side, gradient in vectors:
        roots.append(terms.pairs[name][side])
        gradients.append(gradient.to(roots[-1]))
    reached = [number for number, root in enumerate(roots) if root.requires_grad]
    torch.autograd.backward([roots[number] for number in reached], [gradients[number] for number in reached])
