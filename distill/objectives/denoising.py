"""Denoising: an MLP narrows the student's summary, noise is added, and a second MLP restores the summary (Xray, section
4.2.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from distill.objectives.base import Objective, Term

if TYPE_CHECKING:
    from torch import nn

    from curate.encoders.student.network.student import Student
    from distill.objectives.outputs import Outputs


class Denoising(Objective):
    """Mean squared error over channels. The summary that is restored is a target without a gradient: with one, it would
    collapse. The paper states neither that, nor the noise."""

    noise: Annotated[float, Field(ge=0, le=1e6)] = 0.1
    """Standard deviation of the noise."""
    narrow: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Width in between, as a share of the summary's."""

    def heads(self, student: Student) -> nn.Module:
        from torch import nn

        width = student.backbone.config.width
        between = max(1, round(self.narrow * width))
        down = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, between))
        up = nn.Sequential(nn.Linear(between, width), nn.GELU(), nn.Linear(width, width))
        return nn.ModuleList([down, up])

    def terms(self, outputs: Outputs) -> Mapping[str, Term]:
        from distill.objectives.kernels.losses import errors

        (down, up), summary_BC = self.own(outputs.student).children(), outputs.image.summary
        narrow_BD = down(summary_BC)
        noise_BD = outputs.noise(narrow_BD.shape[1]).to(narrow_BD)
        dtype = outputs.student.backbone.prefix.dtype  # not half precision
        restored_BC = up(narrow_BD + self.noise * noise_BD).to(dtype)
        return {self.label: Term(self.weight, errors(restored_BC, summary_BC.detach().to(dtype), "mse"))}
