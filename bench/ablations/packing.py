"""Images at native aspect ratio, packed, against squares of one size: the same tokens per step, the same steps.

A square is the whole image, stretched to 128 x 128 pixels. Each student is evaluated on images of the shape it was
trained on, and the teacher gets the same images.
"""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from bench.ablations import judge
from bench.ablations.clip_arts import clip_arts, native
from bench.ablations.folders import HOME, Curated, curate
from bench.ablations.runs import Ablation, Arm, Scores
from curate.codec.images import decode

SIDE = 128
LONG = 1.25
"""Minimum aspect ratio of a long image."""
TEACHER = "descriptor"


@lru_cache
def squares() -> list[bytes]:
    built = []
    for data in clip_arts().images:
        stream = io.BytesIO()
        decode(data).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(stream, "PNG")
        built.append(stream.getvalue())
    return built


def _squares(seed: int) -> Curated:
    path = HOME / "pools" / "squares.parquet"
    if not path.exists():
        arts = clip_arts()
        columns = {"image": squares(), "name": arts.keys, "duplicate_set": arts.sets}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".tmp")
        pq.write_table(pa.table({**columns, "label": [arts.classes[label] for label in arts.labels]}), partial)
        partial.rename(path)
    return curate("squares", [f"parquet={path}"])


def _judge(folder: Path, arm: Arm, seed: int) -> Scores:
    arts = clip_arts()
    images = arts.images if arm.name == "native" else squares()
    found = judge.outputs(judge.model_of(folder), images)
    target = judge.teacher_summaries(TEACHER, images, f"clip-arts-{arm.name}")
    held, long = arts.held(seed), arts.sides.max(1) > LONG * arts.sides.min(1)
    scores = {"kNN": arts.knn(found.summary, seed)}
    scores[f"cosine to {TEACHER}"] = judge.only(judge.cosines(found.predictions[TEACHER], target), held)
    for name, values in list(scores.items()):
        scores[f"{name}, long images"] = judge.only(values, long)
        scores[f"{name}, the others"] = judge.only(values, ~long)
    return {name: np.asarray(values, np.float32) for name, values in scores.items()}


def ablation() -> Ablation:
    return Ablation(
        name="packing",
        question="native aspect, packed, against squares of one size, at equal tokens",
        recipe="clip-art-shapes",
        arms=(Arm("squares", (), _squares), Arm("native", (), native)),
        pairs=(("native", "squares"),),
        judge=_judge,
        expected={"native": "no lower"},
        source="AMoE, token-balanced batching",
    )
