"""The student and its heads: what is trained, checkpointed and evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from distill.models.moe import MoeConfig
from distill.models.rope import Grid
from distill.models.text import TextConfig, TextTower, scale_at
from distill.models.vit import VisionTransformer, VitConfig, VitOutput
from distill.recipe.student import StudentRecipe


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


@dataclass(frozen=True)
class StudentConfig:
    vit: VitConfig
    text: TextConfig | None = None
    embed: int = 0
    """Width of the space that pictures and texts share; 0 without a text tower."""

    @classmethod
    def of(cls, recipe: StudentRecipe, temperature: float = 0.07) -> StudentConfig:
        """temperature: of the contrastive loss at the start."""
        moe = None if recipe.moe is None else MoeConfig(**recipe.moe.model_dump())
        vit = VitConfig(
            patch=recipe.patch,
            width=recipe.width,
            depth=recipe.depth,
            heads=recipe.heads,
            mlp_ratio=recipe.mlp_ratio,
            registers=recipe.registers,
            head_dim=recipe.head_dim,
            moe=moe,
        )
        if recipe.text is None:
            return cls(vit)
        return cls(vit, TextConfig(**recipe.text.model_dump(), temperature=temperature), recipe.embed)


class Student(nn.Module):
    """forward(patches, grids) -> VitOutput; `heads[i]` belongs to the i-th teacher.

    With a text tower: `text(tokens)` and `project(summary)` are vectors of one space, compared by cosine.
    """

    text: TextTower | None
    logit_scale: nn.Parameter
    logit_bias: nn.Parameter

    def __init__(self, config: StudentConfig, heads: Sequence[HeadConfig]) -> None:
        super().__init__()
        width = config.vit.width
        self.backbone = VisionTransformer(config.vit)
        self.heads = nn.ModuleList(Head(width, head) for head in heads)
        self.text = None if config.text is None else TextTower(config.text, config.embed)
        if config.text is not None:
            self.project = nn.Linear(width, config.embed, bias=False)
            nn.init.trunc_normal_(self.project.weight, std=width**-0.5)
            self.logit_scale = nn.Parameter(scale_at(config.text.temperature))
            self.logit_bias = nn.Parameter(torch.tensor(-10.0))  # SigLIP, Sec. 3.2

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> VitOutput:
        return self.backbone(patches, grids)


def build_student(config: StudentConfig, heads: Sequence[HeadConfig], seed: int) -> Student:
    """The same weights for a seed on any machine: drawn on the CPU, without touching the global generator's state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Student(config, heads)


def apply_checkpointing(student: Student) -> None:
    """Blocks keep their inputs only and are computed again for the backward pass: the same gradients to the bit."""
    student.backbone.checkpointing = True


def compile_blocks(student: Student, backend: str = "inductor") -> None:
    """torch.compile what lies between attentions, for any number of tokens. Names of weights stay as they are."""
    for block in student.backbone.blocks:
        block.before = torch.compile(block.before, dynamic=True, backend=backend)
        block.after = torch.compile(block.after, dynamic=True, backend=backend)
