"""Masked autoencoding: the student sees a few patches of an image, a light decoder predicts the pixels of the others
(He et al. 2022; 75 % hidden of images, and 90 % of clips as in Feichtenhofer et al. 2022; Xray, section 4.2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from curate.core.recipe.section import Section, Width
from distill.objectives.base import Needs, Objective, Term
from distill.objectives.views import View

if TYPE_CHECKING:
    from torch import nn

    from curate.encoders.student.network.student import Student
    from distill.objectives.outputs import Outputs

Hidden = Annotated[float, Field(gt=0, lt=1)]


class DecoderSize(Section):
    depth: Width = 4
    """Blocks, which are like the student's."""
    width: Annotated[int, Field(ge=4, le=1 << 20)] = 192
    heads: Width = 3

    @model_validator(mode="after")
    def _divisible(self) -> DecoderSize:
        if self.width % (4 * self.heads):
            raise ValueError(f"width {self.width} is not a multiple of 4 x heads ({self.heads}); choose one that is")
        return self


class Mae(Objective):
    """Predict the pixels of hidden patches, each patch normalised by its mean and standard deviation. Patches of each
    frame of a clip are hidden on their own."""

    hidden: Hidden = 0.75
    """Share of the patches of an image."""
    hidden_of_clips: Hidden = 0.9
    """Share of the patches of each frame of a clip."""
    decoder: DecoderSize = DecoderSize()

    @property
    def view(self) -> View:
        return View(hidden=self.hidden, hidden_of_clips=self.hidden_of_clips)

    def needs(self) -> Needs:
        return Needs(views=(self.view,))

    def heads(self, student: Student) -> nn.Module:
        from distill.objectives.kernels.decoder import Decoder

        return Decoder(student.backbone.config, **self.decoder.model_dump())

    def terms(self, outputs: Outputs) -> Mapping[str, Term]:
        """The mean squared error over the hidden patches of an image."""
        from distill.objectives.kernels.decoder import normalised
        from distill.objectives.kernels.losses import errors, hidden_means

        seen = outputs.view(self.view)
        predicted_NP = self.own(outputs.student)(seen.output.patches, seen.drawn.grids, seen.drawn.places)
        pixels_NP = normalised(outputs.batch.tensor(predicted_NP.device).to(outputs.student.backbone.prefix.dtype))
        errors_N = errors(predicted_NP, pixels_NP, "mse")
        return {self.label: Term(self.weight, hidden_means(errors_N, seen.hidden, outputs.lengths))}
