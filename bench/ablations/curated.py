"""Subsets of one deduplicated pool, of equal size: curated by a hierarchy, by flat clusters, by a cover, and random.

The pool is CIFAR-10 with a tail of 100:1 and a quarter of copies; each seed makes other classes rare and is the seed of
tree, selection and student. The test is of the curation: `select.hierarchical` over three levels by our schedule,
against the published schedule, one level of as many clusters, and `select.uniform`; and a cover inside of few flat
clusters, or inside of the second level of the hierarchy.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.ablations.cifar import long_tail, parts, tail_order, write_parquet
from bench.ablations.cifar_student import bank_and_test, scores, teacher
from bench.ablations.folders import HOME, Curated, curate
from bench.ablations.judge import in_parts
from bench.ablations.runs import Ablation, Arm, Scores

TARGET = 3000
ARMS = {
    "random": ("arm=random",),
    "flat": ("levels=[400]", "depth=1"),
    "published": ("schedule=published",),
    "curated": (),
    "default": ("levels=[90]", "depth=1", "rounds=0", "even=0.5"),
    "cover": ("levels=[90]", "depth=1", "rounds=0", "strategy=cover", "even=0.5"),
    "tree-cover": ("strategy=cover", "level=2"),
}
"""Settings of the recipe."""
HEAD, TAIL = 3, 3
"""Number of most frequent and of rarest classes, out of ten."""


def _dataset(arm: str, seed: int) -> Curated:
    path = HOME / "pools" / f"cifar-tail-{seed}.parquet"
    if not path.exists():
        write_parquet(long_tail(parts()[1], seed), path)
    built = [f"pool=cifar-tail-{seed}", f"parquet={path}", f"encoder={teacher()}", f"seed={seed}", f"target={TARGET}"]
    return curate("cifar-tail", [*built, *ARMS[arm]])


def _judge(folder: Path, arm: Arm, seed: int) -> Scores:
    labels = bank_and_test()[1].labels
    found = scores(folder)
    order = tail_order(10, seed)
    groups = {"3 frequent classes": order[:HEAD], "4 between": order[HEAD:-TAIL], "3 rare classes": order[-TAIL:]}
    for name in ("kNN", "linear probe"):
        found |= in_parts(found[name], labels, groups, name)
    return found


def ablation() -> Ablation:
    return Ablation(
        name="curated",
        question="a hierarchically curated subset against others of equal size",
        recipe="cifar-student",
        settings=(f"teachers.0.encoder={teacher()}",),
        arms=tuple(Arm(name, (), partial(_dataset, name)) for name in ARMS),
        pairs=(
            ("curated", "random"),
            ("flat", "curated"),
            ("published", "curated"),
            ("default", "random"),
            ("cover", "random"),
            ("tree-cover", "random"),
            ("tree-cover", "curated"),
        ),
        judge=_judge,
        expected={"curated": "higher", "flat": "lower", "default": "higher", "cover": "higher", "tree-cover": "higher"},
        source="AMoE's OpenLVD200M; Vo et al. 2024",
    )
