"""Balanced pairs (ViSE), all of them or those above a similarity of image and text, for an image-text model.

Table 2 of Xray-Visual in small: each threshold filters the same resampled pairs, and every student trains for the same
number of steps, with label smoothing. The encoder `tiny` scores the pairs. It was trained on this corpus, the held-out
clip-arts included, so its cosines tell more than those of an unrelated model would.

A web pool has pairs that do not match; the corpus has few. `mixed-30` gives 30 % of the clip-arts an alt text of the
web in place of their texts, before anything is cleaned or balanced; the test keeps the clip-arts' texts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from bench.ablations.balanced import judged, pairs
from bench.ablations.clip_arts import images
from bench.ablations.folders import HOME, Curated
from bench.ablations.runs import Ablation, Arm
from bench.kit.features import shared

THRESHOLDS = (0.15, 0.25, 0.35)
MIXED, MIXED_THRESHOLD = (10, 30, 50), 0.25
"""Percent of the clip-arts with another text, and the threshold that Table 2 found best."""


def _filtered(threshold: float) -> Arm:
    def dataset(seed: int) -> Curated:
        return pairs(0.0, seed, "filter=similarity", f"similarity={threshold}")

    return Arm(f"above-{threshold}", (), dataset)


def _mixed(percent: int, *settings: str) -> Arm:
    def dataset(seed: int) -> Curated:
        return pairs(0.0, seed, *settings, folder=_mixed_folder(percent, seed))

    return Arm(f"mixed-{percent}-above-{MIXED_THRESHOLD}" if settings else f"mixed-{percent}", (), dataset)


def _mixed_folder(percent: int, seed: int) -> Path:
    """The clip-arts, of which a share has an alt text of the web as its only text."""
    made, source = HOME / "pools" / f"openclipart-mixed-{percent}-{seed}", images()
    if not (made / "metadata.jsonl").exists():
        rng = np.random.default_rng(seed)
        table = pq.read_table(shared() / "data" / "laion-alt-text-10k.parquet", columns=["caption"])
        web = [text for text in table["caption"].to_pylist() if text]
        rows = [json.loads(line) for line in (source / "metadata.jsonl").read_text().splitlines()]
        for row in rows:
            path = made / row["file_name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                os.link((source / row["file_name"]).resolve(), path)
        others = rng.choice(len(rows), round(len(rows) * percent / 100), replace=False)
        for place, text in zip(others, rng.choice(len(web), len(others), replace=False), strict=True):
            rows[place] = {"file_name": rows[place]["file_name"], "caption": web[text]}
        (made / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def ablation() -> Ablation:
    filtered = [_filtered(threshold) for threshold in THRESHOLDS]
    settings = ("filter=similarity", f"similarity={MIXED_THRESHOLD}")
    mixed = [(_mixed(percent), _mixed(percent, *settings)) for percent in MIXED]
    return Ablation(
        name="filtered",
        question="balanced pairs above a similarity against all of them",
        recipe="clip-art-pairs",
        arms=(
            Arm("resampled", (), lambda seed: pairs(0.0, seed)),
            *filtered,
            *(arm for both in mixed for arm in both),
        ),
        pairs=(
            *((arm.name, "resampled") for arm in filtered),
            *((above.name, every.name) for every, above in mixed),
        ),
        judge=judged,
        expected={"above-0.25": "higher"} | {above.name: "higher" for _, above in mixed},
        source="Xray-Visual, Table 2",
    )
