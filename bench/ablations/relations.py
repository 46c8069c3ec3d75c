"""A loss on the distances between images: asymmetric (ARKD), symmetric (RKD), or none."""

from __future__ import annotations

from pathlib import Path

from bench.ablations.cifar_student import plain, scores, teacher
from bench.ablations.runs import Ablation, Arm, Scores


def _judge(folder: Path, arm: Arm, seed: int) -> Scores:
    return scores(folder)


def ablation() -> Ablation:
    return Ablation(
        name="relations",
        question="ARKD, RKD, or no loss on the distances between images",
        recipe="cifar-student",
        settings=(f"teachers.0.encoder={teacher()}",),
        arms=tuple(Arm(kind, (f"teachers.0.relations.kind={kind}",), plain) for kind in ("none", "rkd", "arkd")),
        pairs=(("arkd", "none"), ("rkd", "none"), ("arkd", "rkd")),
        judge=_judge,
        expected={"arkd": "kNN no lower, distances kept", "rkd": "distances kept"},
        source="AMoE, Eq. 7; Park et al. 2019",
    )
