"""Any encoder of curate as a teacher, on images preprocessed as in its training (often to a square).

Its patch features are resampled to the student's grid. They line up if the teacher squashes images, but not if it crops
them. A teacher without patch features gives summaries only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import nn

from curate.encoders import Encoder
from distill.samples.images.reader import PatchedImage
from distill.teachers.base import Shape, TeacherFeatures


class EncoderTeacher:
    prepares = True

    def __init__(self, encoder: Encoder, *, patches: bool = True, registers: int = 0) -> None:
        """patches: whether to compute patch features; registers: the student's number."""
        self.encoder = encoder
        matching = registers if encoder.registers == registers else 0
        self.shape = Shape(encoder.dim, encoder.patch_dim if patches and encoder.patch_dim else None, matching)

    def prepare(self, image: Image.Image) -> Any:
        return self.encoder.prepare(image)

    def features(self, images: Sequence[PatchedImage], prepared: Sequence[Any]) -> list[TeacherFeatures]:
        needs_patches, needs_registers = self.shape.patches is not None, self.shape.registers > 0
        features = self.encoder.encode(list(prepared), patches=needs_patches or needs_registers)
        patches = features.patches if needs_patches else None
        registers = features.registers if needs_registers else None
        return [
            TeacherFeatures(
                torch.from_numpy(features.summary[number]),
                None if patches is None else torch.from_numpy(patches[number]),
                None if registers is None else torch.from_numpy(registers[number]),
            )
            for number in range(len(images))
        ]

    def pooler(self) -> nn.Module | None:
        return pooler_of(getattr(self.encoder, "model", None))


def pooler_of(model: nn.Module | None) -> nn.Module | None:
    """The model's `attn_pool`, as timm calls it."""
    found = getattr(model, "attn_pool", None)
    return found if isinstance(found, nn.Module) else None
