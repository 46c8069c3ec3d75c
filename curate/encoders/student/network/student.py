"""The student and its heads: the module that is trained, checkpointed, evaluated and exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from curate.encoders.student.config import HeadConfig, StudentConfig
from curate.encoders.student.network.rope import Grid
from curate.encoders.student.network.text import Tower, scale_at, text_tower
from curate.encoders.student.network.tokens import means
from curate.encoders.student.network.vit import VisionTransformer, VitOutput


class Head(nn.Module):
    """fc -> LayerNorm -> GELU -> fc, shared by summary and patches; two final fc if the teacher's widths differ."""

    def __init__(self, width: int, config: HeadConfig) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, config.hidden), nn.LayerNorm(config.hidden), nn.GELU())
        self.out = nn.Linear(config.hidden, config.summary)
        own = config.patches is not None and config.patches != config.summary
        self.patch_out = nn.Linear(config.hidden, config.patches) if own and config.patches else self.out

    def forward(self, x: Tensor) -> Tensor:
        """Summaries (images, width) -> the teacher's space (images, config.summary)."""
        prediction: Tensor = self.out(self.body(x))
        return prediction

    def summary(self, x: Tensor) -> Tensor:
        return self.forward(x)

    def patches(self, x: Tensor) -> Tensor:
        prediction: Tensor = self.patch_out(self.body(x))
        return prediction

    def registers(self, x: Tensor) -> Tensor:
        """(images, registers, width) -> (images, registers, config.summary)."""
        return self.forward(x)


class Student(nn.Module):
    """forward(patches, grids) -> VitOutput; `heads[i]` belongs to the i-th teacher.

    With a text tower, `text(tokens)` (or `text(vectors)`) and `image_vectors(output)` are vectors of one space,
    compared by cosine.
    `objectives` has modules that only training needs, by objective; an exported student has none.
    """

    objectives: nn.ModuleDict
    text: Tower | None
    logit_scale: nn.Parameter
    logit_bias: nn.Parameter

    def __init__(self, config: StudentConfig, heads: Sequence[HeadConfig]) -> None:
        super().__init__()
        width = config.width
        self.backbone = VisionTransformer(config)
        self.heads = cast(Sequence[Head], nn.ModuleList(Head(width, head) for head in heads))
        self.text = None if config.text is None else text_tower(config.text, config.embed)
        if config.text is not None:
            joined = 2 * width if config.embeds_patches else width
            self.project = nn.Linear(joined, config.embed, bias=False)
            nn.init.trunc_normal_(self.project.weight, std=joined**-0.5)
            self.logit_scale = nn.Parameter(scale_at(0.07))
            self.logit_bias = nn.Parameter(torch.tensor(-10.0))  # SigLIP, Sec. 3.2
        self.objectives = nn.ModuleDict()

    def forward(
        self,
        patches: Tensor,
        grids: Sequence[Grid],
        places: Sequence[NDArray[np.int64]] | None = None,
        masked: Mapping[str, Tensor] | None = None,
        frames: Sequence[int] | None = None,
        draws: NDArray[np.uint64] | None = None,
    ) -> VitOutput:
        """places, frames, draws: see `VisionTransformer.forward`; masked: masks (N,) of patches whose embeddings are
        replaced by the `mask` (width,) of a module of `objectives`, by its name."""
        masks = [(mask, self.objectives[name].mask) for name, mask in (masked or {}).items()]
        output: VitOutput = self.backbone(patches, grids, places, masks, frames, draws)
        return output

    def image_vectors(self, output: VitOutput) -> Tensor:
        """(images, embed), not normalised. Raises InputError if it needs patches and `output` is without them."""
        if not self.backbone.config.embeds_patches:
            return self.joined(output.summary)
        return self.joined(output.summary, output.patches, output.lengths)

    def joined(self, summary_BC: Tensor, patches_NC: Tensor | None = None, lengths: Sequence[int] = ()) -> Tensor:
        """(B, embed) of summaries, and of the patches of all images end to end, `lengths` of each."""
        parts = [summary_BC, *([] if patches_NC is None else [means(patches_NC, lengths)])]
        vectors: Tensor = self.project(torch.cat(parts, -1))
        return vectors


def build_student(config: StudentConfig, heads: Sequence[HeadConfig], seed: int) -> Student:
    """Random weights that depend on the seed only: drawn on the CPU, leaving the global generator's state unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Student(config, heads)


def compile_blocks(student: Student, backend: str = "inductor") -> None:
    """torch.compile the code between attentions, for any number of tokens. The names of weights do not change."""
    for block in student.backbone.blocks:
        for name in ("before", "after", "attended", "fed"):  # `keep` and `merge` come between the last two
            setattr(block, name, torch.compile(getattr(block, name), dynamic=True, backend=backend))
