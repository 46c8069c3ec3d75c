"""The decoder of masked autoencoding, and the pixels that it predicts (He et al. 2022, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from curate.encoders.student.config import StudentConfig
from curate.encoders.student.network.layers import NORMS
from curate.encoders.student.network.rope import Grid, positions
from curate.encoders.student.network.tokens import TokenSet, chosen
from curate.encoders.student.network.vit import Block, attend, initialise


class Decoder(nn.Module):
    """forward(the student's outputs of the visible patches (V, C), grids, places of these patches) -> normalised pixels
    (N, patch * patch * 3) of all patches. Blocks are like those of a dense student."""

    def __init__(self, student: StudentConfig, depth: int, width: int, heads: int) -> None:
        super().__init__()
        sizes = {"depth": depth, "width": width, "heads": heads, "head_dim": None, "moe": None}
        rotary = {"positions": "axial" if student.axial else "golden"}  # also if the student has neither
        self.config = student.model_copy(update=sizes | rotary)
        self.embed = nn.Linear(student.width, width)
        self.mask = nn.Parameter(torch.empty(width))
        self.blocks = cast(Sequence[Block], nn.ModuleList(Block(self.config) for _ in range(depth)))
        self.norm = NORMS[student.norm](width)
        self.pixels = nn.Linear(width, student.patch**2 * 3)
        self.apply(initialise)
        nn.init.normal_(self.mask, std=0.02)

    def forward(self, visible_VC: Tensor, grids: Sequence[Grid], places: Sequence[NDArray[np.int64]]) -> Tensor:
        counts = [rows * columns for rows, columns in grids]
        wide = torch.promote_types(self.mask.dtype, torch.float32)
        at = positions(grids, 0, 0 if self.config.axial else None).to(visible_VC.device, wide)
        plan, rotation = attend(self.config, TokenSet(counts, 0, at))
        embedded = self.embed(visible_VC).to(self.mask.dtype)
        x = self.mask.expand(sum(counts), -1).index_copy(0, chosen(counts, places).to(at.device), embedded)
        for block in self.blocks:
            x = block(x, rotation, plan)
        pixels: Tensor = self.pixels(self.norm(x))
        return pixels


def normalised(pixels_NP: Tensor) -> Tensor:
    """Pixels of patches with mean 0 and variance 1 in each patch, unless it has one colour only."""
    centred_NP = pixels_NP / 255
    centred_NP = centred_NP - centred_NP.mean(-1, keepdim=True)
    return centred_NP / (centred_NP.square().mean(-1, keepdim=True) + 1e-6).sqrt()
