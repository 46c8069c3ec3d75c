"""What the three ablations on CIFAR-10 share: the frozen teacher, and how a student is judged on the test set."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from bench.ablations import judge
from bench.ablations.cifar import Pictures, balanced, cifar, parts, write_parquet
from bench.ablations.folders import HOME, Curated, call, curate
from bench.ablations.runs import Scores

BANK = 500
"""Labelled pictures of each class that neighbours and probe are taken from: of those that the teacher learned from."""
TEST = 500
"""Pictures of each class of the test set."""
NAME = "cifar"
"""Of the teacher, in recipes."""


def teacher() -> str:
    """The encoder's name; taught first where it is not there."""
    folder = HOME / "teacher"
    if not folder.exists():
        print("the teacher: some 6 CPU-minutes, once", flush=True)
        call("bench.ablations.teacher", [str(folder)], HOME / "logs" / "teacher.log")
    return f"timm:{folder}"


@lru_cache
def bank_and_test() -> tuple[Pictures, Pictures]:
    taught, _ = parts()
    return balanced(taught, BANK), balanced(cifar("test"), TEST)


def plain(seed: int) -> Curated:
    """All pictures outside of the teacher's part as a dataset, the same for every seed."""
    path = HOME / "pools" / "cifar.parquet"
    if not path.exists():
        write_parquet(parts()[1], path)
    return curate("cifar", [f"parquet={path}"])


def scores(folder: Path, others: tuple[str, ...] = ()) -> Scores:
    """kNN and linear probe of the class, and agreement with the teachers; others: encoders taught besides."""
    bank, test = bank_and_test()
    model = judge.model_of(folder)
    known, own = judge.seen(model, bank.images).summary, judge.seen(model, test.images)
    asked = (known, bank.labels, own.summary, test.labels, len(test.classes))
    found = {"kNN": judge.knn_right(*asked), "linear probe": judge.probe_right(*asked)}
    for name, spec in {NAME: teacher(), **{other: other for other in others}}.items():
        wanted = judge.teacher_summaries(spec, test.images, "cifar-test")
        found[f"cosine to {name}"] = judge.cosines(own.said[name], wanted)
        found[f"rank correlation with {name}"] = judge.rank_correlations(own.summary, wanted)
    return {name: np.asarray(values, np.float32) for name, values in found.items()}
