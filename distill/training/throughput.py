"""How much arithmetic a step asks for, and how much this device could do: the share of its peak that training reaches.

Model FLOPs, as Chowdhery et al. 2022 (PaLM, appendix B) count them: 2 per weight and token forwards, twice as many
backwards, of the experts only those that a token visits, attention of each image to itself; nothing for what is
computed again (activation checkpointing), for text towers and for teachers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from distill.models.student import Student
from distill.recipe import Recipe

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class Size:
    parameters: int
    active: int
    """Of those, the ones that a token visits: `active` of each block's experts."""


def size_of(student: Student, recipe: Recipe) -> Size:
    """To be asked before the weights are sharded. Frozen ones (a teacher's pooler) are not counted."""
    own = [item for item in student.parameters() if item.requires_grad]
    return Size(sum(item.numel() for item in own), round(sum(item.numel() * _visited(item, recipe) for item in own)))


@dataclass(frozen=True)
class Cost:
    """Model FLOPs of an update, by what goes through the student."""

    token: float
    """In the blocks, without attention."""
    pair: float
    """Attention of a token to another one of its image, in all blocks."""
    patch: float
    """Embedding, and the heads that see patches."""
    image: float
    """The heads that see summaries alone."""

    @classmethod
    def of(cls, student: Student, recipe: Recipe) -> Cost:
        """To be asked before the weights are sharded."""
        size = recipe.student
        attention = 4.0 * size.heads * (size.head_dim or size.width // size.heads) * size.depth
        patch, image = _matrices(student.backbone.embed, recipe), 0.0
        for head, teacher in zip(student.heads, recipe.teachers, strict=True):
            if teacher.patches.weight or teacher.pooler:
                patch += _matrices(head, recipe)
            else:
                image += _matrices(head, recipe)
        return cls(3 * 2 * _matrices(student.backbone.blocks, recipe), 3 * attention, 3 * 2 * patch, 3 * 2 * image)

    def flops(self, patches: Sequence[int], prefix: int) -> float:
        """patches: of each image; prefix: CLS and registers."""
        lengths = [count + prefix for count in patches]
        tokens, pairs = sum(lengths), sum(length**2 for length in lengths)
        return self.token * tokens + self.pair * pairs + self.patch * sum(patches) + self.image * len(patches)


def _matrices(module: nn.Module, recipe: Recipe) -> float:
    return sum(item.numel() * _visited(item, recipe) for item in module.parameters() if item.ndim > 1)


def _visited(parameter: nn.Parameter, recipe: Recipe) -> float:
    """Share of a weight that a token visits; experts are stacked along a third dimension."""
    moe = recipe.student.moe
    return moe.active / moe.experts if moe is not None and parameter.ndim == 3 else 1.0


_PEAK_SECONDS = 0.3
"""For which a CPU is tried."""


@lru_cache
def measured_peak(device: torch.device, precision: str, threads: int) -> float:
    """FLOPs a second of a large matrix product here: the best of a few, in the run's number format.

    threads: torch's, which the answer depends on.
    """
    size, repeats = (8192, 10) if device.type == "cuda" else (512, 50)
    a = torch.ones(size, size, device=device, dtype=_DTYPES[precision])
    best, began = float("inf"), time.perf_counter()
    for done in range(1 + repeats):
        if done > 3 and time.perf_counter() - began > _PEAK_SECONDS:
            break
        _wait(device)
        start = time.perf_counter()
        a @ a
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
