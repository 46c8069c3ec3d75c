"""Two texts per clip-art (title, keywords): trained on one of them, on a mixture, or on both in each step (siamese).

The student retrieves each held-out clip-art's title among all held-out titles, and its keywords among all keywords.
Clip-arts whose title or keywords many others share (names of collections) are not tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.ablations import judge
from bench.ablations.balanced import SHARED
from bench.ablations.clip_arts import TEST_FRACTION, images
from bench.ablations.folders import Curated, curate
from bench.ablations.runs import Ablation, Arm, Scores
from distill.evaluation.datasets import texts_of
from distill.evaluation.tasks.classification import ranks_of_truth
from distill.evaluation.tasks.zero_shot import class_scores
from distill.recipe import SourceRecipe
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import Mixture
from distill.samples.sources.split import held_out

KINDS = ("title", "tags")
FIRST = 10


def dataset(seed: int) -> Curated:
    """The same for every seed."""
    return curate("clip-art-texts", [f"images={images()}"])


@lru_cache
def _samples() -> tuple[Mixture, dict[str, list[str]]]:
    """The dataset, and the texts of each kind, empty where an image has none."""
    own = open_dataset(dataset(0).dataset)
    mixture = Mixture([own], [SourceRecipe(dataset=own.url)])
    members, rows = MemberReader(mixture), range(len(own))
    return mixture, {kind: ["".join(own[:1]) for own in texts_of(mixture, members, [kind], rows)] for kind in KINDS}


def scores(folder: Path, arm: Arm, seed: int) -> Scores:
    model = judge.model_of(folder)

    def embedded(images: Sequence[bytes]) -> judge.Floats:
        found = judge.outputs(model, images).embedding
        assert found is not None
        return found

    return scores_of(seed, embedded, lambda texts: judge.embed_texts(model, texts))


def scores_of(
    seed: int, embed_images: Callable[[list[bytes]], judge.Floats], embed_texts: Callable[[list[str]], judge.Floats]
) -> Scores:
    mixture, texts = _samples()
    members, dataset = MemberReader(mixture), mixture.sources[0]
    keys = [str(key) for key in dataset.strings("key")]
    sets = [name or key for name, key in zip(dataset.strings("duplicate_set"), keys, strict=True)]
    held = held_out(keys, sets, seed=seed, fraction=TEST_FRACTION)
    counts = {kind: Counter(texts[kind]) for kind in KINDS}
    tested = [
        all(texts[kind][row] and counts[kind][texts[kind][row]] <= SHARED for kind in KINDS)
        for row in range(len(dataset))
    ]
    rows = np.flatnonzero(held & np.array(tested))
    images = embed_images([members.read(row) for row in rows.tolist()])
    found_at = {}
    for kind in KINDS:
        own, place = np.unique(np.array([texts[kind][row] for row in rows]), return_inverse=True)
        rank = ranks_of_truth(class_scores(images, embed_texts(own.tolist())), place.astype(np.int64))
        found_at[f"{kind} among all, first {FIRST}"] = _at(rows, rank < FIRST, len(dataset))
    return found_at


def _at(rows: NDArray[np.int64], right: NDArray[np.bool_], count: int) -> judge.Floats:
    """Scores (count,) of the given rows, NaN elsewhere."""
    values = np.full(count, np.nan, np.float32)
    values[rows] = right
    return values


def _arm(name: str, texts: str, *more: str) -> Arm:
    return Arm(name, (f"data.sources.0.texts={texts}", *more), dataset)


def ablation() -> Ablation:
    return Ablation(
        name="texts",
        question="training on titles, on keywords, on either by weight, or on both in each step",
        recipe="clip-art-pairs",
        arms=(
            _arm("title", "{title: 1}"),
            _arm("tags", "{tags: 1}"),
            _arm("mixed", "{title: 0.5, tags: 0.5}"),
            _arm("siamese", "{title: 0.5, tags: 0.5}", "data.sources.0.text_pair=[title, tags]"),
        ),
        pairs=(
            ("tags", "title"), ("mixed", "title"), ("mixed", "tags"), ("siamese", "title"), ("siamese", "tags"),
            ("siamese", "mixed"),
        ),
        judge=scores,
        expected={"siamese": "both kinds kept"},
        source="Xray-Visual, section 4.7.1, with titles for synthetic captions",
        settings=("train.steps=200", "train.warmup_steps=20"),
    )  # fmt: skip
