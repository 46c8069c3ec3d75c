"""Balanced pairs (ViSE), all of them or those above a similarity of image and text, for an image-text model.

Table 2 of Xray-Visual in small: each threshold filters the same resampled pairs, and every student trains for the same
number of steps, with label smoothing. The encoder `tiny` scores the pairs. It was trained on this corpus, the held-out
clip-arts included, so its cosines tell more than those of an unrelated model would.
"""

from __future__ import annotations

from bench.ablations.balanced import judged, pairs
from bench.ablations.folders import Curated
from bench.ablations.runs import Ablation, Arm

THRESHOLDS = (0.15, 0.25, 0.35)


def _filtered(threshold: float) -> Arm:
    def dataset(seed: int) -> Curated:
        return pairs(0.0, seed, "filter=similarity", f"similarity={threshold}")

    return Arm(f"above-{threshold}", (), dataset)


def ablation() -> Ablation:
    filtered = [_filtered(threshold) for threshold in THRESHOLDS]
    return Ablation(
        name="filtered",
        question="balanced pairs above a similarity against all of them",
        recipe="clip-art-pairs",
        arms=(Arm("resampled", (), lambda seed: pairs(0.0, seed)), *filtered),
        pairs=tuple((arm.name, "resampled") for arm in filtered),
        judge=judged,
        expected={"above-0.25": "higher"},
        source="Xray-Visual, Table 2",
    )
