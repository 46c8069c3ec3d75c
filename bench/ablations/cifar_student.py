"""The frozen teacher and the evaluation on the test set, shared by the three ablations on CIFAR-10."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from bench.ablations import judge
from bench.ablations.cifar import Images, balanced, cifar, parts, write_parquet
from bench.ablations.folders import HOME, Curated, call, curate
from bench.ablations.runs import Scores

BANK = 500
"""Labelled images per class for neighbours and probe, from the teacher's training images."""
TEST = 500
"""Test images per class."""
NAME = "cifar"
"""The teacher's name in recipes."""


def teacher() -> str:
    """The encoder's name; trains the teacher if it is missing."""
    folder = HOME / "teacher"
    if not folder.exists():
        print("training the teacher: about 6 CPU-minutes, once", flush=True)
        call("bench.ablations.teacher", [str(folder)], HOME / "logs" / "teacher.log")
    return f"timm:{folder}"


@lru_cache
def bank_and_test() -> tuple[Images, Images]:
    taught, _ = parts()
    return balanced(taught, BANK), balanced(cifar("test"), TEST)


def plain(seed: int) -> Curated:
    """All images outside the teacher's part as a dataset, the same for every seed."""
    path = HOME / "pools" / "cifar.parquet"
    if not path.exists():
        write_parquet(parts()[1], path)
    return curate("cifar", [f"parquet={path}"])


def scores(folder: Path, others: tuple[str, ...] = ()) -> Scores:
    """kNN and linear probe of the class, and agreement with the teachers; others: encoders of additional teachers."""
    bank, test = bank_and_test()
    model = judge.model_of(folder)
    known, own = judge.outputs(model, bank.images).summary, judge.outputs(model, test.images)
    asked = (known, bank.labels, own.summary, test.labels, len(test.classes))
    found = {"kNN": judge.knn_right(*asked), "linear probe": judge.probe_right(*asked)}
    for name, spec in {NAME: teacher(), **{other: other for other in others}}.items():
        target = judge.teacher_summaries(spec, test.images, "cifar-test")
        found[f"cosine to {name}"] = judge.cosines(own.predictions[name], target)
        found[f"rank correlation with {name}"] = judge.rank_correlations(own.summary, target)
    return {name: np.asarray(values, np.float32) for name, values in found.items()}
