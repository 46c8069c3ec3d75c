"""FLOPs of a training step and the peak of a device, for the share of the peak that training reaches.

Model FLOPs as in Chowdhery et al. 2022 (PaLM, appendix B): 2 per weight and token in the forward pass, twice as many in
the backward pass; only the experts that a token visits; attention within each image. Recomputation (activation
checkpointing), text towers and teachers are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from curate.encoders.student.network.student import Student
from curate.encoders.student.reduction import Reduction
from distill.recipe import Recipe

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class Size:
    parameters: int
    active: int
    """Parameters that a token visits: `active` of each block's experts, and all that are not in experts."""


def size_of(student: Student, recipe: Recipe) -> Size:
    """Parameters without frozen ones (a teacher's pooler). Call it before the weights are sharded."""
    own = [item for item in student.parameters() if item.requires_grad]
    experts = {weight for moe in student.backbone.moes() for weight in (moe.gate_up, moe.down)}
    visited = sum(item.numel() * (_visited(item, recipe) if item in experts else 1.0) for item in own)
    return Size(sum(item.numel() for item in own), round(visited))


@dataclass(frozen=True)
class Cost:
    """Model FLOPs of an update, per token, pair of tokens, patch and image."""

    token: float
    """In the blocks, without attention."""
    pair: float
    """Attention between two tokens of an image, in all blocks."""
    patch: float
    """In the embedding and in the heads that read patches."""
    image: float
    """In the heads that read only summaries."""
    reduction: Reduction
    depth: int

    @classmethod
    def of(cls, student: Student, recipe: Recipe) -> Cost:
        """Call it before the weights are sharded."""
        size = recipe.student
        attention = 4.0 * size.heads * size.attention_dim * size.depth
        patch, image = _matrices(student.backbone.embed, recipe), 0.0
        for head, teacher in zip(student.heads, recipe.teachers, strict=True):
            if teacher.patches.weight or teacher.pooler:
                patch += _matrices(head, recipe)
            else:
                image += _matrices(head, recipe)
        blocks = sum(_matrices(block, recipe) for block in student.backbone.blocks)
        return cls(3 * 2 * blocks, 3 * attention, 3 * 2 * patch, 3 * 2 * image, size.reduction, size.depth)

    def flops(self, patches: Sequence[int], prefix: int) -> float:
        """FLOPs of an update. patches: number per image; prefix: number of CLS and register tokens."""
        counts, tokens, pairs = list(patches), 0.0, 0.0
        layers = self.depth if self.reduction else 1
        for layer in range(1, layers + 1):
            tokens += sum(count + prefix for count in counts) / layers
            pairs += sum((count + prefix) ** 2 for count in counts) / layers
            counts = [self.reduction.after(layer, count) for count in counts]
        return self.token * tokens + self.pair * pairs + self.patch * sum(patches) + self.image * len(patches)


def _matrices(module: nn.Module, recipe: Recipe) -> float:
    return sum(item.numel() * _visited(item, recipe) for item in module.parameters() if item.ndim > 1)


def _visited(parameter: nn.Parameter, recipe: Recipe) -> float:
    """Fraction of a weight that a token visits; the weights of experts have a third dimension."""
    moe = recipe.student.moe
    if moe is None or parameter.ndim != 3:
        return 1.0
    return (moe.active + moe.shared_active) / (moe.experts + moe.shared)


_PEAK_SECONDS = 0.3
"""Time limit of the measurement, which a CPU would exceed."""


@lru_cache
def measured_peak(device: torch.device, precision: str, threads: int) -> float:
    """FLOPs per second of a large matrix product on the device, the best of several, in the run's precision.

    threads: torch's number of threads; part of the cache key, because the result depends on it.
    """
    size, repeats = (8192, 10) if device.type == "cuda" else (512, 50)
    a = torch.randn(size, size, device=device).to(_DTYPES[precision])  # a GPU multiplies ones faster
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
