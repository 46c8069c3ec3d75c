"""ARKD, RKD, or no loss on distances, judged by the texts of a head whose teacher was aligned with texts after it was
trained, as AMoE's DINOv3 head by dino.txt.

The teacher learns from two crops of clip-arts, without texts; a text tower is then trained with it locked (LiT), and
the students see the teacher alone. A held-out clip-art is held out of the students' training only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bench.ablations import judge
from bench.ablations.folders import HOME, RECIPES, call
from bench.ablations.objectives import trained
from bench.ablations.runs import Ablation, Arm, Scores
from bench.ablations.texts import dataset, scores_of
from curate.codec.images import decode
from curate.encoders import load
from curate.encoders.student.encoder import DistillEncoder
from distill.export import export
from distill.objectives.slip import Slip

NAME = "locked"
"""The teacher's name in recipes."""
RECIPE = "clip-art-pairs"
_ALONE = ("student.text=null", "contrastive=null")
_BATCH = 128


def teacher() -> Path:
    """The exported backbone; trains it if it is missing, about 5 CPU-minutes."""
    return _model("backbone", *_ALONE, trained(Slip, ", hidden: 256, embed: 64"))


def text_side() -> Path:
    """The same backbone with its text tower."""
    locked = ("student.embedded=summary + patches", f"init_from={{weights: '{teacher()}'}}")
    return _model("text-side", *locked, "data.sources.0.texts={title: 0.5, tags: 0.5}", "train.rates={backbone: 0}")


def _model(name: str, *settings: str) -> Path:
    folder = HOME / "text-side" / name
    if not (folder / "model").exists():
        print(f"training the {name}, once", flush=True)
        own = (
            f"run.folder={folder}",
            f"data.sources.0.dataset={dataset(0).dataset}",
            "data.test_fraction=0",
            *settings,
        )
        arguments = [word for setting in own for word in ("--set", setting)]
        call("distill.cli", ["train", str(RECIPES / f"{RECIPE}.yaml"), *arguments], HOME / "logs" / f"{name}.log")
        export(folder, folder / "model")
    return folder / "model"


def _judge(folder: Path, arm: Arm, seed: int) -> Scores:
    model, side = judge.model_of(folder), load(f"distill:{text_side()}", device="cpu")
    assert isinstance(side, DistillEncoder) and side.image_vectors is not None
    vectors = side.image_vectors

    @torch.no_grad()
    def embedded(images: Sequence[bytes]) -> judge.Floats:
        """The predicted features of the teacher, as the text side compares them."""
        found = []
        for start in range(0, len(images), _BATCH):
            summary, patches = model([decode(data) for data in images[start : start + _BATCH]]).teachers[NAME]
            flat = [own.flatten(0, 1) for own in patches or ()]
            found.append(vectors(summary, torch.cat(flat), [len(own) for own in flat]).numpy())
        return np.concatenate(found)

    return scores_of(seed, embedded, side.encode_text)


def ablation() -> Ablation:
    return Ablation(
        name="text_side",
        question="ARKD, RKD, or no loss on the distances between images, for texts in the space of a head",
        recipe=RECIPE,
        settings=(*_ALONE, f"teachers=[{{encoder: 'distill:{teacher()}', name: {NAME}}}]", "train.steps=300"),
        arms=tuple(Arm(kind, (f"teachers.0.relations.kind={kind}",), dataset) for kind in ("none", "rkd", "arkd")),
        pairs=(("arkd", "none"), ("rkd", "none"), ("arkd", "rkd")),
        judge=_judge,
        expected={"arkd": "higher", "rkd": "higher"},
        source="AMoE, Tables 4, 9 and 10",
    )
