"""What a teacher is, and what it says of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor, nn

from distill.data.pictures import Picture


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
    """Of one teacher on one picture."""

    summary: Tensor
    """(D,) float32."""
    patches: Tensor | None = None
    """(rows * columns, P) float32, on the student's grid."""
    registers: Tensor | None = None
    """(R, D) float32."""

    @property
    def kinds(self) -> list[Tensor]:
        return [kind for kind in (self.summary, self.patches, self.registers) if kind is not None]

    @property
    def nbytes(self) -> int:
        return sum(kind.nbytes for kind in self.kinds)


class Teacher(Protocol):
    """A frozen model. `prepare` may run in several threads at once, `answer` in one."""

    shape: Shape

    def prepare(self, image: Image.Image) -> Any:
        """Its own input of a picture; None where the student's patches are its input. May raise Reject."""

    def answer(self, pictures: Sequence[Picture], prepared: Sequence[Any]) -> list[Answer]: ...

    def pooler(self) -> nn.Module | None:
        """Its frozen attention pooler over patch tokens, where it has one."""


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
