"""Xray-Visual's ladder of stages and techniques (Table 6), cumulative, on clip-arts.

Keywords are the hashtags. Masked autoencoding for 100 updates of 64 images, hashtags for 200, titles for 200.
"""

from __future__ import annotations

from pathlib import Path

from bench.ablations import judge
from bench.ablations.objectives import dataset, folders, objective
from bench.ablations.runs import Ablation, Arm, Scores
from distill.objectives.labels import Labels
from distill.objectives.mae import Mae
from distill.objectives.slip import Slip

_MAE = objective(Mae, "decoder: {depth: 1, width: 96}")
_LABELS = objective(Labels, "column: meta.keywords, classes: 200, outside: ignore")
_SLIP = objective(Slip, "hidden: 256, embed: 64")
_CROPS = "{crop: [0.5, 1], aspect: 1.33, flip: true}"
_ALL = "{crop: [0.5, 1], aspect: 1.33, flip: true, colour: [0.32, 0, 0.32, 0], blur: 0.5, letterbox: 0.5}"


def _arm(name: str, *settings: str, augment: str = _CROPS, registers: int = 0, captions: str | None = "[]") -> Arm:
    """captions: objectives of the stage with captions; None: without this stage."""
    without = "student: {text: null}, contrastive: null"
    stages = [
        f"{{{without}, objectives: [{_MAE}], train: {{steps: 100}}}}",
        f"{{{without}, objectives: [{_LABELS}], train: {{steps: 200}}}}",
    ]
    if captions is not None:
        stages.append(f"{{objectives: {captions}, train: {{steps: 200}}}}")
    own = (
        "data.sources.0.texts={title: 1}", f"data.augment={augment}", f"student.registers={registers}",
        f"data.sequence_tokens={16 * (37 + registers)}", f"stages=[{', '.join(stages)}]", *settings,
    )  # fmt: skip
    return Arm(name, own, dataset)


def scores(folder: Path, arm: Arm, seed: int) -> Scores:
    return folders(judge.model_of(folder), dataset(0).dataset, seed)


def ablation() -> Ablation:
    arms = (
        _arm("hashtags", captions=None),
        _arm("captions"),
        _arm("registers", registers=4),
        _arm("augmentations", registers=4, augment=_ALL),
        _arm("slip", registers=4, augment=_ALL, captions=f"[{_SLIP}]"),
    )
    names = [arm.name for arm in arms]
    return Ablation(
        name="xray_ladder",
        question="each stage or technique against the rung before it, and all of them against the first",
        recipe="clip-art-pairs",
        arms=arms,
        pairs=(*zip(names[1:], names, strict=False), (names[-1], names[0])),
        judge=scores,
        expected=dict.fromkeys(names[1:], "higher"),
        source="Xray-Visual, section 4.2, Table 6",
        settings=("train.warmup_steps=20", "data.sequence_images=16"),
    )
