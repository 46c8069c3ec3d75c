"""Distillation: the student predicts a teacher's features of the same image (AMoE, Eqs. 1 to 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from curate.core.recipe.section import Section, Weight
from distill.objectives.base import Kind, Needs, Objective, Term

if TYPE_CHECKING:
    from distill.objectives.outputs import Outputs


class TermRecipe(Section):
    """A loss between the student's and a teacher's features of the same image. With weight 0 it is not computed, except
    for the summary."""

    weight: Weight = 1.0
    loss: Literal["cosine", "mse", "smooth_l1"] = "mse"
    error: Literal["mean", "sum"] = "mean"
    """Over channels, for mse and smooth_l1 (AMoE Eq. 2 sums, its Listing 2 means)."""


class Distillation(Objective):
    teacher: str
    """Its label."""
    summary: TermRecipe = TermRecipe(loss="cosine")
    patches: TermRecipe = TermRecipe()
    registers: TermRecipe = TermRecipe()
    """For teachers with as many registers as the student."""
    pooler: bool = False
    """Whether the teacher's pooler computes the student's summary from its patches."""

    @property
    def label(self) -> str:
        return f"{self.teacher}/features"

    @property
    def trains(self) -> bool:
        terms = (self.summary, self.patches, self.registers)
        return self.weight > 0 and any(term.weight > 0 for term in terms)

    def needs(self) -> Needs:
        kinds: set[Kind] = {"summary"}
        if self.patches.weight > 0 or self.pooler:
            kinds.add("patches")
        if self.registers.weight > 0:
            kinds.add("registers")
        return Needs(features={self.teacher: frozenset(kinds)})

    def terms(self, outputs: Outputs) -> Mapping[str, Term]:
        """The mean over an image's patches, and over its registers."""
        from curate.encoders.student.network.tokens import means
        from distill.objectives.kernels.losses import errors

        predicted, target = outputs.predicted(self.teacher), outputs.target(self.teacher)
        term = self.summary
        losses = {"summary": (term.weight, errors(predicted.summary, target.summary, term.loss, term.error))}
        term = self.patches
        if term.weight and predicted.patches is not None and target.patches is not None:
            per_token = errors(predicted.patches, target.patches, term.loss, term.error)
            losses["patches"] = term.weight, means(per_token, outputs.lengths)
        term = self.registers
        if term.weight and predicted.registers is not None and target.registers is not None:
            per_register = errors(predicted.registers, target.registers, term.loss, term.error)
            losses["registers"] = term.weight, per_register.mean(1)
        return {f"{self.teacher}/{kind}": Term(self.weight * own, each) for kind, (own, each) in losses.items()}
