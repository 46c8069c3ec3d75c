"""What a teacher is, and what it says of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor, nn

from curate.encoders import Encoder
from distill.samples.images.images import Picture


@dataclass(frozen=True)
class Shape:
    """Widths of what a teacher says."""

    summary: int
    patches: int | None = None
    """None when it has no patch features."""
    registers: int = 0
    """How many; as wide as the summary."""


@dataclass(frozen=True)
class Answer:
    """Of one teacher on one picture, on any device; float32, but for patches that are kept in float16."""

    summary: Tensor
    """(D,)."""
    patches: Tensor | None = None
    """(h, w, P) on a grid of the teacher's own, which may be the student's."""
    registers: Tensor | None = None
    """(R, D)."""

    def kinds(self) -> list[Tensor]:
        return [kind for kind in (self.summary, self.patches, self.registers) if kind is not None]

    def halved(self) -> Answer:
        """Patches rounded to float16."""
        return replace(self, patches=None if self.patches is None else self.patches.half())

    def to_keep(self) -> Answer:
        """In main memory, without the rest of the batch that it is a part of."""
        return Answer(*(None if kind is None else kind.to("cpu", copy=True) for kind in self._fields()))  # type: ignore[arg-type]

    def _fields(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        return self.summary, self.patches, self.registers


@dataclass
class Target:
    """What one teacher says of some pictures."""

    summary: Tensor
    """(B, D) float32."""
    patches: Tensor | None = None
    """(N, P) float32 on the students' grids, end to end; None when the teacher has none."""
    registers: Tensor | None = None
    """(B, R, D) float32; None when the teacher has none."""

    def to(self, device: torch.device, dtype: torch.dtype) -> Target:
        moved = (None if kind is None else kind.to(device, dtype) for kind in (self.patches, self.registers))
        return Target(self.summary.to(device, dtype), *moved)


class Teacher(Protocol):
    """A frozen model. `prepare` may run in several threads at once, `answer` in one."""

    shape: Shape
    prepares: bool
    """It looks at the picture itself, and says the same whatever grid the student has it on; else at the student's
    patches, and `prepare` is never called."""

    @property
    def encoder(self) -> Encoder: ...

    def prepare(self, image: Image.Image) -> Any:
        """Its own input of a picture. May raise Reject."""

    def answer(self, pictures: Sequence[Picture], prepared: Sequence[Any]) -> list[Answer]:
        """prepared: as many as pictures where it prepares, else none."""

    def pooler(self) -> nn.Module | None:
        """Its own attention pooler over patch tokens (B, N, P) -> (B, D), where its summary is made by one."""
