"""Does a sample chosen with the encoder of photos teach? The default sample, the hierarchy and random ones, each a
quarter of a pool: CIFAR-10 as it is and with a tail of 100:1, and half of the thousand photos of ImageNet.

Each seed draws the pool, the sample and the student. The photos' classes are kinds, hypernyms with at least ten photos;
a fifth of them is held out. Vectors of photos and thumbnails are kept, and the samples are drawn by the kernels of
`select.hierarchical` (bench.select.balance).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from bench.ablations import judge
from bench.ablations.cifar import Images, balanced, long_tail, tail_order, write_parquet
from bench.ablations.cifar_student import bank_and_test, scores, teacher
from bench.ablations.folders import HOME, Curated, curate
from bench.ablations.judge import in_parts
from bench.ablations.runs import Ablation, Arm, Scores
from bench.select.balance.methods import METHODS, random
from bench.select.balance.pools import PHOTO_ENCODER, Floats, Pool, cifar_vectors, kinds

WAYS = {"random": random, "hierarchy": METHODS["short"], "default": METHODS["flat, fast cover, half by size"]}
OF_EACH = 800
"""Images of each class in the pool that is balanced already."""
SHARES = {"equal": 0.25, "tail": 0.25, "photos": 0.5}
HELD_OUT = 0.2
PHOTOS = (
    f"teachers.0.encoder={PHOTO_ENCODER}", "data.sources.0.max_tokens=64", "student.patch=16", "train.steps=100",
    "train.sequences=2",
)  # fmt: skip


def _pool(kind: str, seed: int) -> tuple[Floats, Images]:
    if kind == "photos":
        vectors, photos = kinds(PHOTO_ENCODER)
        rows = np.flatnonzero(~_held_out(photos, seed))
        return vectors[rows], photos.take(rows)
    vectors, others = cifar_vectors(PHOTO_ENCODER)
    place = {name: row for row, name in enumerate(others.names)}
    names = balanced(others, OF_EACH).names if kind == "equal" else long_tail(others, seed).names
    rows = np.array([place[name] for name in names if name in place])
    return vectors[rows], others.take(rows)


def _held_out(photos: Images, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(len(photos)) < HELD_OUT) & (photos.labels >= 0)


def _dataset(kind: str, way: str, seed: int) -> Curated:
    path = HOME / "pools" / f"sampled-{kind}-{way}-{seed}.parquet"
    if not path.exists():
        vectors, images = _pool(kind, seed)
        [rows] = WAYS[way](Pool(vectors), [int(SHARES[kind] * len(vectors))], seed)
        write_parquet(images.take(np.sort(rows)), path)
    return curate("cifar", [f"pool=sampled-{kind}", f"parquet={path}"])


def _judge(folder: Path, arm: Arm, seed: int) -> Scores:
    if not arm.name.startswith("photos"):
        found = scores(folder)
        labels, order = bank_and_test()[1].labels, tail_order(10, seed)
        groups = {"3 rare classes": order[-3:]} if arm.name.startswith("tail") else {}
        for name in ("kNN", "linear probe"):
            found |= in_parts(found[name], labels, groups, name)
        return found
    _, photos = kinds(PHOTO_ENCODER)
    asked = _held_out(photos, seed)
    bank, test = (photos.take(np.flatnonzero(rows)) for rows in (~asked & (photos.labels >= 0), asked))
    model = judge.model_of(folder)
    known, own = (judge.outputs(model, some.images).summary for some in (bank, test))
    given = (known, bank.labels, own, test.labels, len(photos.classes))
    scored = {"kNN": judge.knn_right(*given), "linear probe": judge.probe_right(*given)}
    return {name: np.asarray(values, np.float32) for name, values in scored.items()}


def ablation() -> Ablation:
    arms = [
        Arm(f"{kind} {way}", PHOTOS if kind == "photos" else (), partial(_dataset, kind, way))
        for kind in SHARES
        for way in WAYS
    ]
    pairs = [(f"{kind} {way}", f"{kind} random") for kind in SHARES for way in ("default", "hierarchy")]
    return Ablation(
        name="sampled",
        question="samples chosen with the encoder of photos against random ones",
        recipe="cifar-student",
        settings=(f"teachers.0.encoder={teacher()}", "train.steps=160"),
        arms=tuple(arms),
        pairs=tuple(pairs),
        judge=_judge,
        expected={"tail default": "higher", "tail hierarchy": "higher"},
        source="Vo et al. 2024",
    )
