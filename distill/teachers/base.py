"""The interface of a teacher, and its features of an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor, nn

from curate.encoders import Encoder
from distill.samples.images.reader import PatchedImage


@dataclass(frozen=True)
class Shape:
    """Widths of a teacher's features."""

    summary: int
    patches: int | None = None
    """None without patch features."""
    registers: int = 0
    """Number of registers, each as wide as the summary."""


@dataclass(frozen=True)
class TeacherFeatures:
    """Features of one image or clip from one teacher, on any device; float32, except patches rounded by `halved`."""

    summary: Tensor
    """(D,)."""
    patches: Tensor | None = None
    """(h, w, P) on the teacher's grid, which may be the student's; the frames of a clip below each other."""
    registers: Tensor | None = None
    """(R, D)."""

    @classmethod
    def of_frames(cls, frames: Sequence[TeacherFeatures]) -> TeacherFeatures:
        """The features of a clip: means over its frames, and the patches of all frames."""
        if len(frames) == 1:
            return frames[0]
        patches = [frame.patches for frame in frames if frame.patches is not None]
        registers = [frame.registers for frame in frames if frame.registers is not None]
        return cls(
            torch.stack([frame.summary for frame in frames]).mean(0),
            torch.cat(patches) if patches else None,
            torch.stack(registers).mean(0) if registers else None,
        )

    def tensors(self) -> list[Tensor]:
        return [value for value in (self.summary, self.patches, self.registers) if value is not None]

    def halved(self) -> TeacherFeatures:
        """Patches rounded to float16."""
        return replace(self, patches=None if self.patches is None else self.patches.half())

    def copy_to_cpu(self) -> TeacherFeatures:
        """A copy in main memory, which does not keep the rest of the batch alive."""
        patches, registers = (
            None if value is None else value.to("cpu", copy=True) for value in (self.patches, self.registers)
        )
        return TeacherFeatures(self.summary.to("cpu", copy=True), patches, registers)


class Teacher(Protocol):
    """A frozen model. `prepare` may run in several threads at once, `features` in one."""

    shape: Shape
    prepares: bool
    """True if it reads the image itself, so that its features do not depend on the student's grid. False if it reads
    the student's patches; `prepare` is then never called."""

    @property
    def encoder(self) -> Encoder: ...

    def prepare(self, image: Image.Image) -> Any:
        """The teacher's input for an image. May raise Reject."""

    def features(self, images: Sequence[PatchedImage], prepared: Sequence[Any]) -> list[TeacherFeatures]:
        """prepared: one input per image if the teacher prepares, otherwise empty."""

    def pooler(self) -> nn.Module | None:
        """Its attention pooler over patch tokens, (B, N, P) -> (B, D); None if it has no such pooler."""
