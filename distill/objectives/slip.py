"""SimCLR between two views of each sample, beside the loss between images and texts (SLIP: Mu et al. 2022; Xray,
section 4.2.4): two random crops of an image, or two frames of a clip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from curate.core.recipe.section import Width
from distill.objectives.base import Needs, Objective
from distill.objectives.views import SECOND, WHOLE

if TYPE_CHECKING:
    from torch import Tensor, nn

    from curate.encoders.student.network.student import Student
    from distill.objectives.outputs import Outputs


class Slip(Objective):
    """One view is the image that all other objectives see, so that there are two passes and not three as in SLIP. The
    three layers are normalised per sample, not per batch, so that the loss does not depend on micro-batches."""

    temperature: Annotated[float, Field(gt=0, le=1e3)] = 0.1
    hidden: Width = 4096
    embed: Width = 256

    def needs(self) -> Needs:
        return Needs(views=(WHOLE, SECOND))

    def heads(self, student: Student) -> nn.Module:
        from torch import nn

        width, hidden = student.backbone.config.width, self.hidden
        return nn.Sequential(
            nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.GELU(),
            nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.GELU(),
            nn.Linear(hidden, self.embed),
        )  # fmt: skip

    def vectors(self, outputs: Outputs) -> tuple[Tensor, ...]:
        first, second = outputs.two_views
        dtype = outputs.student.backbone.prefix.dtype
        return self.own(outputs.student)(first).to(dtype), self.own(outputs.student)(second).to(dtype)

    def pairs(self, student: Student, *vectors: Tensor) -> Tensor:
        from distill.objectives.kernels.contrastive import simclr_loss

        first, second = vectors
        return simclr_loss(first, second, self.temperature)
