"""Any encoder of curate as a teacher: it is given the picture as it was trained to see it (often a square).

Patch features are brought to the student's grid of the same picture, so a teacher that squashes pictures still lines
up; one that crops them does not. A teacher without patch features gives the summary alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from curate.encoders import Encoder
from distill.data.pictures import Picture
from distill.losses import resample_patches
from distill.teachers.base import Answer, Shape


class EncoderTeacher:
    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.shape = Shape(encoder.dim, encoder.patch_dim or None)

    def prepare(self, image: Image.Image) -> Any:
        return self._encoder.prepare(image)

    @torch.no_grad()
    def answer(self, pictures: Sequence[Picture], prepared: Sequence[Any]) -> list[Answer]:
        features = self._encoder.encode(list(prepared))
        answers = []
        for place, picture in enumerate(pictures):
            patches = None
            if features.patches is not None:
                patches = resample_patches(_tensor(features.patches[place]), *picture.grid)
            answers.append(Answer(_tensor(features.summary[place]), patches))
        return answers

    def pooler(self) -> nn.Module | None:
        return None


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(values).detach().float().cpu()
