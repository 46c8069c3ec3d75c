"""Objectives and options of the students of PE and Xray, each against plain contrastive training on clip-arts.

Students train on the clip-arts' titles, 200 updates of 64 images. Judged as `texts`: a held-out clip-art's own title
among all of them, and its keywords, which no arm but the siamese one reads. FLOPs are about equal for `progressive`;
`mae first` has 100 more updates, on a quarter of the patches.
"""

from __future__ import annotations

from bench.ablations.runs import Ablation, Arm
from bench.ablations.texts import dataset, scores
from distill.objectives import Objective
from distill.objectives.denoising import Denoising
from distill.objectives.masking import Masking
from distill.objectives.slip import Slip


def trained(objective: type[Objective], values: str = "") -> str:
    """The setting of an arm that has this objective too."""
    return f"objectives=[{{objective: {objective.__module__}:{objective.__qualname__}{values}}}]"


def _arm(name: str, *settings: str, sources: tuple[str, ...] = ("data.sources.0",)) -> Arm:
    return Arm(name, ("data.sources.0.texts={title: 1}", *settings), dataset, sources)


def ablation() -> Ablation:
    arms = (
        _arm("plain"),
        _arm("masking", trained(Masking, ", share: 0.25")),
        _arm("denoising", trained(Denoising)),
        _arm("two crops", trained(Slip, ", hidden: 256, embed: 64")),
        _arm("all negatives", "contrastive.negatives=all"),
        _arm("attention pool", "student.pool=attention", "student.pool_heads=3"),
        _arm("mean pool", "student.pool=mean"),
        _arm("axial", "student.positions=axial"),
        _arm("keep 0.7", "student.keep=0.7"),
        _arm("merge 3", "student.merge=3"),
        _arm(
            "progressive",
            "data.sources.0.max_tokens=16",
            "train.steps=212",
            "stages=[{}, {data: {sources: [{max_tokens: 36, texts: {title: 1}}]},"
            " train: {steps: 100, restart: false}}]",
            sources=("data.sources.0", "stages.1.data.sources.0"),
        ),
        _arm(
            "mae first",
            "train.steps=100",
            "stages=[{student: {text: null}, contrastive: null,"
            " objectives: [{objective: distill.objectives.mae:Mae, decoder: {depth: 1, width: 96}}]},"
            " {train: {steps: 200, warmup_steps: 20}}]",
        ),
        _arm("siamese", "data.sources.0.texts={title: 0.5, tags: 0.5}", "data.sources.0.text_pair=[title, tags]"),
    )
    return Ablation(
        name="objectives",
        question="objectives and options of Perception Encoder and Xray-Visual against plain contrastive training",
        recipe="clip-art-pairs",
        arms=arms,
        pairs=tuple((arm.name, "plain") for arm in arms[1:]),
        judge=scores,
        expected={},
        source="Perception Encoder, section 2.1; Xray-Visual, sections 3.2 and 4",
        settings=("train.steps=200", "train.warmup_steps=20", "data.sequence_images=16"),
    )
