"""Objectives that are not in the package, as recipes of the tests name them."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from curate.encoders.descriptor import Descriptor
from curate.encoders.student.network.student import Student
from curate.encoders.student.network.tokens import means
from distill.objectives import Objective, Term
from distill.objectives.outputs import Outputs


class Pairs(Descriptor):
    """A teacher of images and texts whose vectors do not depend on the batch, not even in their last bits."""

    context = 8

    def encode_text(self, texts: list[str]) -> np.ndarray:
        drawn = [np.random.default_rng(crc32(text.encode())).normal(size=self.dim) for text in texts]
        return np.array(drawn, dtype=np.float32).reshape(-1, self.dim)


class Colours(Objective):
    """Each patch predicts its mean colour, and images are as similar as their mean colours; both through own heads."""

    hidden: int = 8

    def heads(self, student: Student) -> nn.Module:
        width = student.backbone.prefix.shape[-1]
        patches = nn.Sequential(nn.Linear(width, self.hidden), nn.GELU(), nn.Linear(self.hidden, 3))
        return nn.ModuleDict({"patches": patches, "images": nn.Linear(width, self.hidden)})

    def terms(self, outputs: Outputs) -> Mapping[str, Term]:
        own: Tensor = self.own(outputs.student)["patches"](outputs.image.patches)
        errors_N = (own - colours(outputs, own)).square().mean(-1)
        return {f"{self.label}/patches": Term(self.weight, means(errors_N, outputs.lengths))}

    def vectors(self, outputs: Outputs) -> tuple[Tensor, ...]:
        own = self.own(outputs.student)["images"](outputs.image.summary)
        channels = colours(outputs, own).unbind(1)
        return own, torch.stack([means(each, outputs.lengths) for each in channels], 1)

    def pairs(self, student: Student, *vectors: Tensor) -> Tensor:
        own, wanted = (normalize(side.double(), dim=-1) for side in vectors)
        return (own @ own.T - (wanted @ wanted.T).detach()).square().mean()


class Cracked(Objective):
    """Becomes infinite for the sample of one row."""

    row: int = 11

    def terms(self, outputs: Outputs) -> Mapping[str, Term]:
        cracks = torch.tensor([image.row == self.row for image in outputs.batch.images], dtype=torch.bool)
        lengths = outputs.image.summary.square().mean(1)
        return {self.label: Term(self.weight, lengths / torch.where(cracks, 0.0, 1.0).to(lengths))}


def colours(outputs: Outputs, like: Tensor) -> Tensor:
    """(N, 3) mean colours of the patches, 0 to 1."""
    return outputs.batch.tensor(like.device).unflatten(-1, (-1, 3)).to(like.dtype).mean(1) / 255
