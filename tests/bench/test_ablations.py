"""Scores, pools and table of the ablations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.ablations import (
    balanced,
    cifar,
    filtered,
    judge,
    objectives,
    packing,
    pe_ladder,
    resolutions,
    runs,
    text_side,
    texts,
    xray_ladder,
)
from bench.ablations.folders import Curated
from bench.ablations.runs import Ablation, Arm, Done, Scores
from bench.ablations.table import table
from distill.recipe import load_recipe

ARMED = [
    module.ablation()
    for module in (balanced, filtered, packing, texts, objectives, pe_ladder, xray_ladder, text_side, resolutions)
]


def test_rank_correlation_is_one_for_the_same_order_of_distances() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 8)).astype(np.float32)
    turned = vectors @ np.linalg.qr(rng.normal(size=(8, 8)))[0].astype(np.float32)
    assert judge.rank_correlations(3 * turned, vectors, others=40) == pytest.approx(np.ones(60), abs=1e-2)
    other = judge.rank_correlations(rng.normal(size=(60, 8)).astype(np.float32), vectors, others=40)
    assert abs(other.mean()) < 0.15


def test_probe_and_neighbours_separate_distant_classes() -> None:
    rng = np.random.default_rng(1)
    labels = np.arange(200) % 4
    rows = (4 * np.eye(4)[labels] + 0.3 * rng.normal(size=(200, 4))).astype(np.float32)
    bank, test = (rows[:120], labels[:120]), (rows[120:], labels[120:])
    assert judge.probe_right(*bank, *test, 4).mean() == judge.knn_right(*bank, *test, 4).mean() == 1.0
    assert judge.knn_right(*bank, test[0], (test[1] + 1) % 4, 4).mean() == 0.0


def _images(of_each: int) -> cifar.Images:
    labels = np.repeat(np.arange(10), of_each)
    names = [f"{number}.jpg" for number in range(len(labels))]
    return cifar.Images([name.encode() for name in names], names, labels, [f"class {label}" for label in range(10)])


def test_a_long_tail_falls_by_a_hundred_and_has_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "_reencoded", lambda data: data + b" again")
    pool = cifar.long_tail(_images(400), seed=3)
    copies = np.array([name.startswith("copy/") for name in pool.names])
    sizes = np.bincount(pool.labels[~copies], minlength=10)[cifar.tail_order(10, 3)]
    assert sizes[0] == 400 and sizes[-1] == 4 and (np.diff(sizes) < 0).all()
    assert copies.sum() == int(cifar.COPIES * (~copies).sum())
    names = dict(zip(pool.names, pool.labels, strict=True))
    assert len(names) == len(pool) and all(names[name] == names[name[5:]] for name in names if name.startswith("copy/"))
    assert (cifar.tail_order(10, 3) != cifar.tail_order(10, 4)).any()


def _done(arm: str, seed: int, right: float) -> Done:
    scores = np.full(50, right, np.float32)
    record = {"cpu_seconds": {"train": 100.0, "judge": 20.0 + 300.0 * (arm == "slow")}, "images": 1000}
    return Done(arm, seed, {"kNN": scores, "kNN, rare": np.where(np.arange(50) < 5, scores, np.nan)}, record)


@pytest.mark.parametrize("ablation", ARMED, ids=lambda one: one.name)
def test_each_arm_has_a_correct_recipe_and_is_compared(ablation: Ablation) -> None:
    """Arms with a teacher need its model."""
    for arm in (arm for arm in ablation.arms if arm.teacher is None):
        name = f"{ablation.name}-{arm.name}-0".replace(" ", "-")
        recipe, _ = runs._recipe(ablation, arm, 0, "dataset", name)
        assert recipe.name == name
    compared = {name for pair in ablation.pairs for name in pair}
    assert compared <= {arm.name for arm in ablation.arms}
    teachers = {arm.teacher for arm in ablation.arms}
    assert all(arm.name in compared | teachers or arm.teacher is not None for arm in ablation.arms)
    assert ablation.expected.keys() <= {arm for arm, _ in ablation.pairs}


def test_the_ladder_of_perception_encoder_has_the_samples_of_the_paper() -> None:
    """Section 2.1: 12 billion, then 24; sides of 98, 154, 224, and 336 pixels."""
    samples, sides = {}, {}
    for name, settings in pe_ladder.rungs(pe_ladder.FULL):
        stages = load_recipe("pe", settings).staged()
        samples[name] = sum(one.train.steps * one.train.sequences * 64 for one in stages) / 1e9
        sides[name] = [14 * one.data.sources[0].max_tokens ** 0.5 for one in stages]
    billions = [round(count, 2) for count in samples.values()]
    assert billions == [12, 12] + 7 * [24]
    assert [sides[name] for name in ("baseline", "batch", "masking")] == [[224], [98, 154, 224], [98, 154, 224, 336]]


def test_the_table_has_direction_interval_and_time() -> None:
    def no_scores(folder: Path, arm: Arm, seed: int) -> Scores:
        return {}

    arms = tuple(Arm(name, (), lambda seed: Curated("", 0.0)) for name in ("plain", "slow"))
    ablation = Ablation("toy", "which", "none", arms, (("slow", "plain"),), no_scores, {"slow": "higher"}, "a paper")
    done = [_done("plain", seed, 0.5) for seed in range(3)] + [
        _done("slow", seed, 0.4 + seed / 100) for seed in range(3)
    ]
    done.append(replace(_done("teacher", 0, 0.5), scores={}))  # only other arms use it
    text = table(ablation, done)
    rows = [row for row in text.splitlines() if row.startswith("| kNN")]
    assert len(rows) == 2 and all("| -9.00 | -11.48 … -6.52 | -9.00 … -9.00 | higher | lower |" in row for row in rows)
    assert "plain 2.0, slow 7.0, teacher 2.0 (over the limit of 6)" in text
