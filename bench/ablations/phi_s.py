"""PHI-S against raw targets, for two teachers; the features of one are about twenty times as large as the other's."""

from __future__ import annotations

from pathlib import Path

from bench.ablations.cifar_student import plain, scores, teacher
from bench.ablations.runs import Ablation, Arm, Scores

OTHER = "descriptor"


def _judge(folder: Path, arm: Arm, seed: int) -> Scores:
    return scores(folder, (OTHER,))


def _arm(standardise: str, loss: str) -> Arm:
    settings = []
    for number in range(2):
        settings.append(f"teachers.{number}.standardise={standardise}")
        settings += [f"teachers.{number}.{kind}.loss={loss}" for kind in ("summary", "patches")]
    return Arm(f"{'raw' if standardise == 'none' else standardise}-{loss}", tuple(settings), plain)


def ablation() -> Ablation:
    losses = ("mse", "smooth_l1")
    arms = tuple(_arm(standardise, loss) for loss in losses for standardise in ("none", "phi_s"))
    return Ablation(
        name="phi_s",
        question="PHI-S against raw targets of two teachers",
        recipe="cifar-two-teachers",
        settings=(f"teachers.0.encoder={teacher()}",),
        arms=arms,
        pairs=((arms[1].name, arms[0].name), (arms[3].name, arms[2].name)),
        judge=_judge,
        expected={arms[1].name: "higher", arms[3].name: "higher"},
        source="Ranzinger et al. 2024",
    )
