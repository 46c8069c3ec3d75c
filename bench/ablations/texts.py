"""Two texts per clip-art (title, keywords): trained on one of them, on a mixture, or on both in each step (siamese).

The student retrieves each held-out clip-art's title among all held-out titles, and its keywords among all keywords.
Clip-arts whose title or keywords many others share (names of collections) are not tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.ablations import judge
from bench.ablations.balanced import SHARED
from bench.ablations.clip_arts import TEST_FRACTION, images
from bench.ablations.folders import Curated, curate
from bench.ablations.runs import Ablation, Arm, Scores
from distill.evaluation.datasets import texts_of
from distill.evaluation.models import TextEncoder
from distill.evaluation.tasks.classification import ranks_of_truth
from distill.evaluation.tasks.zero_shot import class_scores
from distill.recipe import SourceRecipe
from distill.samples.sources.dataset import Dataset, open_dataset
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import Mixture
from distill.samples.sources.split import held_out

KINDS = ("title", "tags")
FIRST = 10


def dataset(seed: int) -> Curated:
    """The same for every seed."""
    return curate("clip-art-texts", [f"images={images()}"])


@lru_cache
def _samples(url: str) -> tuple[Mixture, dict[str, list[str]]]:
    """A dataset, and the texts of each kind, empty where an image has none."""
    own = open_dataset(url)
    mixture = Mixture([own], [SourceRecipe(dataset=own.url)])
    members, rows = MemberReader(mixture), range(len(own))
    return mixture, {kind: ["".join(own[:1]) for own in texts_of(mixture, members, [kind], rows)] for kind in KINDS}


def scores(folder: Path, arm: Arm, seed: int) -> Scores:
    model, url = judge.model_of(folder), dataset(0).dataset
    found = ranks(url, partial(judge.embed_images, model), partial(judge.embed_texts, model), seed)
    return {f"{kind} among all, first {FIRST}": first(rank) for kind, rank in found.items()}


def first(rank: judge.Floats) -> judge.Floats:
    """Whether a rank is among the first, NaN where it is."""
    return judge.only((rank < FIRST).astype(np.float32), ~np.isnan(rank))


def ranks(
    url: str,
    embed_images: Callable[[list[bytes]], judge.Floats],
    embed_texts: TextEncoder,
    seed: int,
    *,
    together: bool = True,
) -> dict[str, judge.Floats]:
    """For each kind of text, the rank of each sample's own among those of all tested ones (samples,), 0 for the first;
    NaN for samples that are not tested: those not held out, and those whose text of this kind more than SHARED have;
    together: or whose other text more have."""
    mixture, texts = _samples(url)
    members, source = MemberReader(mixture), mixture.sources[0]
    counts = {kind: Counter(texts[kind]) for kind in KINDS}
    few = {kind: np.array([bool(text) and counts[kind][text] <= SHARED for text in texts[kind]]) for kind in KINDS}
    if together:
        few = dict.fromkeys(KINDS, np.logical_and.reduce(list(few.values())))
    rows = np.flatnonzero(held(source, seed) & np.logical_or.reduce(list(few.values())))
    images = embed_images([members.read(row) for row in rows.tolist()])
    ranks_of = {}
    for kind in KINDS:
        tested = few[kind][rows]
        own, place = np.unique(np.array(texts[kind])[rows[tested]], return_inverse=True)
        scores = class_scores(images[tested], embed_texts(own.tolist()))
        ranks_of[kind] = np.full(len(source), np.nan, np.float32)
        ranks_of[kind][rows[tested]] = ranks_of_truth(scores, place.astype(np.int64))
    return ranks_of


def held(source: Dataset, seed: int) -> NDArray[np.bool_]:
    """Mask (n,) of the samples that a recipe with this seed never trains on."""
    keys = [str(key) for key in source.strings("key")]
    sets = [name or key for name, key in zip(source.strings("duplicate_set"), keys, strict=True)]
    return held_out(keys, sets, seed=seed, fraction=TEST_FRACTION)


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
