"""Pairs balanced by WordNet concepts (ViSE) against as many random pairs, for an image-text model.

Both are drawn from the sentences in which a concept was found. The student retrieves the text of each held-out clip-art
among all held-out texts, and the name of its folder among all folders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.ablations import judge
from bench.ablations.clip_arts import clip_arts, images
from bench.ablations.folders import Curated, curate
from bench.ablations.runs import Ablation, Arm, Scores
from distill.evaluation.tasks.classification import ranks_of_truth
from distill.evaluation.tasks.prompts import names_of, read_templates
from distill.evaluation.tasks.zero_shot import class_scores, class_vectors

SHARE = 0.7
"""Fraction of the sentences with a concept that become pairs."""
SHARED = 5
"""Maximum number of clip-arts that share a text in the test: the most frequent text names a collection of 1,364."""
RARE = 5
"""Maximum number of images of a rare concept."""


def pairs(least: float, seed: int, *more: str, folder: Path | None = None) -> Curated:
    """Pairs of the clip-arts, or of another folder of them."""
    folder = folder or images()
    settings = [f"images={folder}", f"seed={seed}", f"sample.share={SHARE}", f"sample.least={least}", *more]
    return curate("pairs", settings)


def judged(folder: Path, arm: Arm, seed: int) -> Scores:
    arts, model = clip_arts(), judge.model_of(folder)
    found = judge.outputs(model, arts.images)
    assert found.embedding is not None
    held = arts.held(seed)
    counts = Counter(arts.texts)
    rows = np.flatnonzero(held & np.array([bool(text) and counts[text] <= SHARED for text in arts.texts]))

    def vectors(texts: Sequence[str]) -> judge.Floats:
        return judge.embed_texts(model, texts)

    own, place = np.unique(np.array([arts.texts[row] for row in rows]), return_inverse=True)
    rank = ranks_of_truth(class_scores(found.embedding[rows], vectors(own.tolist())), place.astype(np.int64))
    folders = class_vectors(vectors, names_of(arts.classes), read_templates())
    label = ranks_of_truth(class_scores(found.embedding, folders), arts.labels)
    scores = {f"text among all, first {k}": _at(rows, rank < k, len(held)) for k in (1, 10)}
    scores |= {f"folder, first {k}": judge.only((label < k).astype(np.float32), held) for k in (1, 5)}
    scores["kNN"] = arts.knn(found.summary, seed)
    tail = (arts.rarest > 0) & (arts.rarest <= RARE)
    for name in ("text among all, first 10", "folder, first 5", "kNN"):
        scores[f"{name}, rare concepts"] = judge.only(scores[name], tail)
        scores[f"{name}, common concepts"] = judge.only(scores[name], arts.rarest > RARE)
    return scores


def _at(rows: NDArray[np.int64], right: NDArray[np.bool_], count: int) -> judge.Floats:
    """Scores (count,) of the given rows, NaN elsewhere."""
    values = np.full(count, np.nan, np.float32)
    values[rows] = right
    return values


def ablation() -> Ablation:
    return Ablation(
        name="balanced",
        question="pairs balanced by WordNet concepts against as many random pairs",
        recipe="clip-art-pairs",
        arms=(Arm("random", (), partial(pairs, SHARE)), Arm("balanced", (), partial(pairs, 0.0))),
        pairs=(("balanced", "random"),),
        judge=judged,
        expected={"balanced": "higher"},
        source="Xray-Visual, ViSE",
    )
