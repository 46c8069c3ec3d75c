"""Mask regularisation: the outputs of masked patches equal those of the same patches in the whole image (MaskFeat as a
regulariser: Perception Encoder, section 2.1; ratio and batch in its appendix B.1.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from distill.objectives.base import Needs, Objective, Term
from distill.objectives.views import WHOLE, View

if TYPE_CHECKING:
    from torch import nn

    from curate.encoders.student.network.student import Student
    from distill.objectives.outputs import Outputs


class Masking(Objective):
    """1 - cosine between masked patches and the same patches unmasked. A masked copy has no other loss, and the outputs
    of the whole image get no gradient of this one."""

    share: Annotated[float, Field(gt=0, le=1)] = 1 / 16
    """Probability of a sample to be copied and masked. Its loss is divided by it, so that the loss is a mean over the
    copies, in expectation; a small batch may have none of them."""
    hidden: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Share of the patches of a copy that are masked."""

    @property
    def view(self) -> View:
        return View(share=self.share, hidden=self.hidden, masked=self.label)

    def needs(self) -> Needs:
        return Needs(views=(WHOLE, self.view))

    def heads(self, student: Student) -> nn.Module:
        """`mask`: the embedding of a masked patch."""
        import torch
        from torch import nn

        module = nn.Module()
        module.mask = nn.Parameter(torch.randn(student.backbone.config.width) * 0.02)
        return module

    def terms(self, outputs: Outputs) -> Mapping[str, Term]:
        import torch

        from distill.objectives.kernels.losses import errors, hidden_means

        seen, whole_NC = outputs.view(self.view), outputs.pictures.patches.detach()
        parts = whole_NC.split(outputs.lengths)
        target_MC = torch.cat([whole_NC[:0], *(parts[number] for number in seen.drawn.samples)])
        errors_M = errors(seen.output.patches, target_MC, "cosine")
        losses_V = hidden_means(errors_M, seen.hidden, seen.drawn.lengths) / self.share
        losses_B = losses_V.new_zeros(len(outputs.lengths)).index_add(0, seen.samples, losses_V)
        return {self.label: Term(self.weight, losses_B)}
