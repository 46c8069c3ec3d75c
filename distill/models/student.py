"""The student and its heads: what is trained, checkpointed and evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from distill.models.vit import Grid, VisionTransformer, VitConfig, VitOutput


@dataclass(frozen=True)
class HeadConfig:
    summary: int
    """Width of the teacher's summary."""
    patches: int | None
    """Width of its patch features; None when it has none."""
    hidden: int


class Head(nn.Module):
    """fc -> LayerNorm -> GELU -> fc, shared by summary and patches; two last fc where the teacher's widths differ."""

    def __init__(self, width: int, config: HeadConfig) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, config.hidden), nn.LayerNorm(config.hidden), nn.GELU())
        self.out = nn.Linear(config.hidden, config.summary)
        own = config.patches is not None and config.patches != config.summary
        self.patch_out = nn.Linear(config.hidden, config.patches) if own and config.patches else self.out

    def forward(self, x: Tensor) -> Tensor:
        """Summaries (images, width) -> the teacher's space (images, config.summary)."""
        return self.out(self.body(x))

    def patches(self, x: Tensor) -> Tensor:
        return self.patch_out(self.body(x))


class Student(nn.Module):
    """forward(patches, grids) -> VitOutput; `heads[i]` belongs to the i-th teacher."""

    def __init__(self, config: VitConfig, heads: Sequence[HeadConfig]) -> None:
        super().__init__()
        self.backbone = VisionTransformer(config)
        self.heads = nn.ModuleList(Head(config.width, head) for head in heads)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> VitOutput:
        return self.backbone(patches, grids)


def build_student(config: VitConfig, heads: Sequence[HeadConfig], seed: int) -> Student:
    """The same weights for a seed on any machine: drawn on the CPU, without touching the global generator's state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Student(config, heads)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: matrices decay, vectors (norms, biases) and the prefix tokens do not."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim > 1 and not name.endswith("prefix") else rest).append(parameter)
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
