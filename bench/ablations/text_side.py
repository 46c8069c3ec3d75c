"""ARKD, RKD, or no loss on distances, judged by the texts of a head whose teacher was aligned with texts after it was
trained, as AMoE's DINOv3 head by dino.txt.

The teacher (`backbone`) learns from two crops of clip-arts, without texts. A text tower is then trained with it locked
(`text side`, LiT), and the students see the teacher alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from bench.ablations import judge
from bench.ablations.objectives import trained
from bench.ablations.runs import Ablation, Arm, Scores, model
from bench.ablations.texts import FIRST, dataset, first, ranks
from curate.codec.images import decode
from curate.encoders import load
from curate.encoders.student.encoder import DistillEncoder
from curate.encoders.student.model import DistilledModel
from distill.objectives.slip import Slip

NAME = "locked"
"""The teacher's name in recipes."""
_ALONE = ("student.text=null", "contrastive=null")
_STUDENTS = ("none", "rkd", "arkd")
_BATCH = 128


def _locked(folder: Path) -> tuple[str, ...]:
    return (f"init_from={{weights: '{folder}'}}", "train.rates={backbone: 0}")


def _distilled(kind: str, folder: Path) -> tuple[str, ...]:
    return (f"teachers=[{{encoder: 'distill:{folder}', name: {NAME}}}]", f"teachers.0.relations.kind={kind}")


def _judge(folder: Path, arm: Arm, seed: int) -> Scores:
    if arm.name not in _STUDENTS:
        return {}
    side = load(f"distill:{model(ablation(), 'text side', seed)}", device="cpu")
    assert isinstance(side, DistillEncoder)
    found = ranks(dataset(0).dataset, partial(_embedded, judge.model_of(folder), side), side.encode_text, seed)
    return {f"{kind} among all, first {FIRST}": first(rank) for kind, rank in found.items()}


@torch.no_grad()
def _embedded(student: DistilledModel, side: DistillEncoder, images: Sequence[bytes]) -> judge.Floats:
    """The predicted features of the teacher, as the text side compares them."""
    assert side.image_vectors is not None
    found = []
    for start in range(0, len(images), _BATCH):
        output = student([decode(data) for data in images[start : start + _BATCH]])
        summary, patches = output.teachers[NAME]
        flat = [own.flatten(0, 1) for own in patches or ()]
        found.append(side.image_vectors(summary, torch.cat(flat), [len(own) for own in flat]).numpy())
    return np.concatenate(found)


def ablation() -> Ablation:
    texts = ("student.embedded=summary + patches", "data.sources.0.texts={title: 0.5, tags: 0.5}")
    return Ablation(
        name="text_side",
        question="ARKD, RKD, or no loss on the distances between images, for texts in the space of a head",
        recipe="clip-art-pairs",
        arms=(
            Arm("backbone", (*_ALONE, trained(Slip, "hidden: 256, embed: 64")), dataset),
            Arm("text side", texts, dataset, teacher="backbone", taught=_locked),
            *(Arm(kind, _ALONE, dataset, teacher="backbone", taught=partial(_distilled, kind)) for kind in _STUDENTS),
        ),
        pairs=(("arkd", "none"), ("rkd", "none"), ("arkd", "rkd")),
        judge=_judge,
        expected={"arkd": "higher", "rkd": "higher"},
        source="AMoE, Tables 4, 9 and 10",
        settings=("train.steps=300",),
    )
