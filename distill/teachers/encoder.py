"""Any encoder of curate as a teacher: it is given the picture as it was trained to see it (often a square).

Its patch features are stretched over the student's grid of the same picture, so a teacher that squashes pictures lines
up; one that crops them does not. A teacher without patch features gives the summary alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import nn

from curate.encoders import Encoder
from distill.samples.images.images import Picture
from distill.teachers.base import Answer, Shape


class EncoderTeacher:
    prepares = True

    def __init__(self, encoder: Encoder, *, patches: bool = True, registers: int = 0) -> None:
        """patches: False where nobody wants them; registers: of the student."""
        self.encoder = encoder
        matching = registers if encoder.registers == registers else 0
        self.shape = Shape(encoder.dim, encoder.patch_dim if patches and encoder.patch_dim else None, matching)

    def prepare(self, image: Image.Image) -> Any:
        return self.encoder.prepare(image)

    def answer(self, pictures: Sequence[Picture], prepared: Sequence[Any]) -> list[Answer]:
        wants_patches, wants_registers = self.shape.patches is not None, self.shape.registers > 0
        features = self.encoder.encode(list(prepared), patches=wants_patches or wants_registers)
        patches = features.patches if wants_patches else None
        registers = features.registers if wants_registers else None
        return [
            Answer(
                torch.from_numpy(features.summary[place]),
                None if patches is None else torch.from_numpy(patches[place]),
                None if registers is None else torch.from_numpy(registers[place]),
            )
            for place in range(len(pictures))
        ]

    def pooler(self) -> nn.Module | None:
        return pooler_of(getattr(self.encoder, "model", None))


def pooler_of(model: nn.Module | None) -> nn.Module | None:
    """timm's `attn_pool`."""
    found = getattr(model, "attn_pool", None)
    return found if isinstance(found, nn.Module) else None
