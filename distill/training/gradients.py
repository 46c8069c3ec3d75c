"""The gradient of one global batch, the same for any number of ranks and of micro-batches.

Losses of single images add up, so each micro-batch has a separate forward and backward pass; losses are divided by the
number of images in the global batch. Losses between images need the vectors of all images: the ranks gather them
detached, compute the total loss and its gradients together (see `divided`), and each backpropagates the gradients of
the rows it owns. A single micro-batch keeps its graph for this; with several, vectors are first computed without
gradients, then each micro-batch runs forward again (GradCache: Gao et al. 2021, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from curate.encoders.student.network.student import Student
from distill.objectives import Objective
from distill.objectives.kernels.tiles import divided
from distill.objectives.outputs import MicroBatch, Outputs, TeacherSpace
from distill.objectives.terms import Terms, Vectors, relational, terms_of
from distill.parallel import World
from distill.training.sharding import sharded

OBSERVED = 1024
"""Images whose relations are logged, if nothing is learned from them: pairs grow with the square."""
_Gradient = tuple[str, int, Tensor]
"""Label of an objective, position of its vectors, and their gradient."""


@dataclass
class Gradients:
    """Adds the gradients of global batches to a student's weights; `world.sum_gradients` then completes them."""

    student: Student
    objectives: Sequence[Objective]
    spaces: Mapping[str, TeacherSpace]
    """By the teacher's label."""
    empty: MicroBatch
    """Without images, for a rank that has fewer micro-batches than others."""
    world: World
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext

    def add(self, micros: Sequence[MicroBatch], images: float) -> dict[str, float]:
        """Backpropagate this rank's micro-batches, if any; images: number in the global batch.

        Returns sums over the global batch: `loss`, then its parts.
        """
        rounds = self.world.largest(len(micros)) if sharded(self.student) else max(1, len(micros))
        work = [*micros, *[self.empty] * (rounds - len(micros))]
        related = [item for item in self.objectives if item.relates and item.trains]
        observed = [item for item in self.objectives if item.relates and not item.trains]
        first, gradients, relations = list[Terms](), [list[_Gradient]() for _ in work], dict[str, float]()
        if related:
            first = [self._terms(micro, grad=rounds == 1) for micro in work]
            gradients, relations = self._pair_gradients(related, [terms.vectors for terms in first])
        seen, sums = list[Vectors](), dict[str, float]()
        for micro, own in zip(work, gradients, strict=True):
            terms = first[0] if len(first) == 1 else self._terms(micro)
            _backward(terms, images, own)
            seen.append({item.label: tuple(map(Tensor.detach, terms.vectors[item.label])) for item in observed})
            for name, value in {"loss": terms.additive.detach(), **terms.parts}.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        totals = dict(zip(sums, self.world.numbers(sums.values()), strict=True))
        totals["loss"] += relations.pop("loss", 0.0) * images
        if observed:
            every, _ = self._gathered(observed, seen)
            few = {label: tuple(side[:OBSERVED] for side in sides) for label, sides in every.items()}
            with torch.no_grad(), divided(self.world):
                _, parts = relational(observed, few, self.student)
            relations |= {name: float(value) for name, value in parts.items()}
        return totals | {name: value * images for name, value in relations.items()}

    def _terms(self, micro: MicroBatch, *, grad: bool = True) -> Terms:
        with torch.set_grad_enabled(grad), self.precision():
            return terms_of(self.objectives, Outputs.of(self.student, micro, self.spaces))

    def _pair_gradients(
        self, objectives: Sequence[Objective], own: Sequence[Vectors]
    ) -> tuple[list[list[_Gradient]], dict[str, float]]:
        """Losses between images: gradients of the vectors of each micro-batch, and the mean `loss` with its parts."""
        leaves, counts = self._gathered(objectives, own)
        for sides in leaves.values():
            for side in sides:
                side.requires_grad_(side.is_floating_point())
        with divided(self.world):
            loss, parts = relational(objectives, leaves, self.student)
        loss.backward()
        if not self.world.first:  # each rank has the temperature's gradient of the whole batch: count it once
            self.student.zero_grad(set_to_none=True)
        start, gradients = sum(counts[: self.world.rank]), []
        for vectors in own:
            stop = start + _count(objectives, vectors)
            gradients.append([
                (label, number, leaf.grad[start:stop])
                for label, sides in leaves.items()
                for number, leaf in enumerate(sides) if leaf.grad is not None
            ])  # fmt: skip
            start = stop
        return gradients, {"loss": float(loss.detach()), **{name: float(value) for name, value in parts.items()}}

    def _gathered(
        self, objectives: Sequence[Objective], own: Sequence[Vectors]
    ) -> tuple[dict[str, tuple[Tensor, ...]], list[int]]:
        """Vectors of all images of the global batch, detached, by label; and the number of images of each rank.

        own: the vectors of this rank's micro-batches. A collective."""
        counts = self.world.gather(sum(_count(objectives, vectors) for vectors in own))
        every: dict[str, tuple[Tensor, ...]] = {}
        for label in (item.label for item in objectives):
            sides = (torch.cat(parts) for parts in zip(*(vectors[label] for vectors in own), strict=True))
            every[label] = tuple(self.world.gather_rows(side, counts) for side in sides)
        return every, counts


def _count(objectives: Sequence[Objective], vectors: Vectors) -> int:
    """Images of a micro-batch."""
    return len(vectors[objectives[0].label][0])


def _backward(terms: Terms, images: float, vectors: Sequence[_Gradient]) -> None:
    roots, gradients = [terms.additive / images], [torch.ones_like(terms.additive)]
    for label, number, gradient in vectors:
        roots.append(terms.vectors[label][number])
        gradients.append(gradient.to(roots[-1]))
    reached = [number for number, root in enumerate(roots) if root.requires_grad]
    torch.autograd.backward([roots[number] for number in reached], [gradients[number] for number in reached])
