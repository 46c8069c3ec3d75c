"""The student and its heads: what is trained, checkpointed and evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from distill.models.text import TextConfig, TextTower, scale_at
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

    def summary(self, x: Tensor) -> Tensor:
        return self(x)

    def patches(self, x: Tensor) -> Tensor:
        return self.patch_out(self.body(x))

    def registers(self, x: Tensor) -> Tensor:
        """(images, registers, width) -> (images, registers, config.summary)."""
        return self(x)


class Student(nn.Module):
    """forward(patches, grids) -> VitOutput; `heads[i]` belongs to the i-th teacher.

    With a text tower: `text(tokens)` and `project(summary)` are vectors of one space, compared by cosine.
    """

    text: TextTower | None
    logit_scale: nn.Parameter
    logit_bias: nn.Parameter

    def __init__(
        self, config: VitConfig, heads: Sequence[HeadConfig], text: TextConfig | None = None, embed: int = 0
    ) -> None:
        super().__init__()
        self.backbone = VisionTransformer(config)
        self.heads = nn.ModuleList(Head(config.width, head) for head in heads)
        self.text = None if text is None else TextTower(text, embed)
        if text is not None:
            self.project = nn.Linear(config.width, embed, bias=False)
            nn.init.trunc_normal_(self.project.weight, std=config.width**-0.5)
            self.logit_scale = nn.Parameter(scale_at(text.temperature))
            self.logit_bias = nn.Parameter(torch.tensor(-10.0))  # SigLIP, Sec. 3.2

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> VitOutput:
        return self.backbone(patches, grids)


def build_student(
    config: VitConfig, heads: Sequence[HeadConfig], seed: int, text: TextConfig | None = None, embed: int = 0
) -> Student:
    """The same weights for a seed on any machine: drawn on the CPU, without touching the global generator's state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Student(config, heads, text, embed)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: matrices decay, vectors (norms, biases) and the prefix tokens do not."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim > 1 and not name.endswith(("prefix", "positions")) else rest).append(parameter)
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
