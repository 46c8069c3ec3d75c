"""Clip-arts at the size of the training, below and beyond it: Golden against axial positions, and what a second stage
of larger images forgets.

Students learn from `descriptor` on at most 36 patches of 16 pixels; a second stage has four times as many.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from bench.ablations import judge
from bench.ablations.clip_arts import clip_arts, native
from bench.ablations.runs import Ablation, Arm, Scores
from curate.codec.images import decode

SIDES = (96, 192, 384)
"""Pixels a side of a square with as many; 36, 144 and 576 patches."""
BANK, TEST = 2000, 1000
"""Training and held-out images that are judged."""
_STAGES = "stages=[{{train: {{steps: 160}}}}, {{data: {{sources: [{{max_tokens: {tokens}}}]}}, train: {{steps: 80}}}}]"
_BOTH = ("data.sources.0", "stages.1.data.sources.0")


def _judge(folder: Path, arm: Arm, seed: int) -> Scores:
    arts, model = clip_arts(), judge.model_of(folder)
    held, order = arts.held(seed), np.random.default_rng(seed).permutation(len(arts.labels))
    bank, test = order[~held[order]][:BANK], order[held[order]][:TEST]
    tested = test[np.isin(arts.labels[test], arts.labels[bank])]
    found = {}
    for side in SIDES:
        model.max_tokens = (side // 16) ** 2
        known, own = (judge.outputs(model, _sized(arts.images, rows, side)).summary for rows in (bank, tested))
        right = np.full(len(arts.labels), np.nan, np.float32)
        right[tested] = judge.knn_right(known, arts.labels[bank], own, arts.labels[tested], len(arts.classes))
        found[f"kNN, {side} px"] = right
    return found


def _sized(images: list[bytes], rows: np.ndarray, side: int) -> list[Image.Image]:
    """Images scaled, up or down, to as many pixels as a square of this side."""
    scaled = []
    for image in (decode(images[row]) for row in rows):
        factor = side / (image.width * image.height) ** 0.5
        size = tuple(max(16, round(length * factor)) for length in image.size)
        scaled.append(image.resize(size, Image.Resampling.BICUBIC))
    return scaled


def ablation() -> Ablation:
    return Ablation(
        name="resolutions",
        question="axial against Golden positions beyond the training's size; a stage of larger images, alone and mixed",
        recipe="clip-art-shapes",
        settings=("data.sources.0.max_tokens=36",),
        arms=(
            Arm("golden", (), native),
            Arm("axial", ("student.positions=axial",), native),
            Arm("larger", (_STAGES.format(tokens=144),), native, _BOTH),
            Arm("mixed", (_STAGES.format(tokens="{36: 1, 144: 1}"),), native, _BOTH),
        ),
        pairs=(("axial", "golden"), ("larger", "golden"), ("mixed", "golden"), ("mixed", "larger")),
        judge=_judge,
        expected={"axial": "lower at 384 px", "larger": "lower at 96 px", "mixed": "no lower at 96 px"},
        source="AMoE, sections 3.4 and 8, Figures 2 and 6",
    )
