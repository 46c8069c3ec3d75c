"""The schedules of `cluster.fit`: ours (`short`), that of Vo et al. 2024 (`published`), and flat k-means.

python -m bench.select.schedule [disc] [cifar] [clip-arts] [--clip-arts FOLDER]      all three by default

disc: KL to the uniform density of 3,000 of its points (see bench.select.hierarchical); lower is better. The others:
samples of a tenth of a pool with a long tail of classes, by the evenness of its classes (1: all equal) and by the share
that it holds of the rows of the smaller half of the classes; higher is better. CIFAR-10 is embedded by the network of
bench.ablations.teacher, which was trained on other images; each seed makes other classes rare. OpenClipart is embedded
by `descriptor`, without byte-identical copies, by its 22 folders.

Mean of 3 seeds with a 95 % interval by Student's t, and the same of the paired difference to `short`. Seconds are of
the processor, for the fit. The published schedule runs up to 50 passes per k-means, ours up to 30.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.ablations.statistics import over_seeds
from bench.kit.features import bench_points, kl_to_uniform
from bench.kit.measure import line, machine
from bench.kit.pools import THREADS, clip_arts
from bench.select.hierarchical import DISC_LEVELS, DISC_NEAREST, DISC_SAMPLE, SEEDS, Fitted, at_random, balanced
from curate.cluster.tree.levels import fit_tree, level_settings
from curate.core.group import MemoryGroup
from curate.kernels.evenness import evenness
from curate.kernels.nearest.search import nearest
from tests.conftest import ROOT

SHARE = 0.1
CIFAR_LEVELS, CLIP_ART_LEVELS = (1000, 100, 12), (400, 60, 12)
PUBLISHED_PASSES, SHORT_PASSES, ROUNDS = 50, 30, 10

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
Measure = Callable[[Indices], list[float]]


@dataclass(frozen=True)
class Way:
    name: str
    depth: int
    """Levels of the tree, from the finest."""
    rounds: int = ROUNDS
    published: bool = False
    r: tuple[int | None, ...] | None = None
    """Points per centroid of each level; None: the default of the schedule."""


@dataclass(frozen=True)
class Case:
    """A pool under one seed, and how to judge a sample of it."""

    vectors: Floats
    target: int
    unit: bool
    measure: Measure


def ways(levels: Sequence[int], r: tuple[int, ...] | None = None) -> list[Way]:
    """The first is what the others are compared with."""
    depth = len(levels)
    half = r or (None,) * depth
    named = "half the mean at all levels" if r is None else f"r = {list(r)}"
    return [
        Way(f"short, {named} (default)" if r is None else f"short, {named}", depth, r=half),
        Way(f"published, {named}", depth, published=True, r=half),
        Way("published, level 1 not resampled, as its web run", depth, published=True, r=(1, *half[1:])),
        Way("no resampling", depth, rounds=0),
        *(Way(f"flat k-means, k = {k:,}", -(number + 1), rounds=0) for number, k in enumerate(levels)),
    ]


def fit(vectors: Floats, levels: Sequence[int], way: Way, seed: int, unit: bool) -> tuple[Fitted, float]:
    """A tree over all vectors, and the processor seconds of its fit. A negative depth -t is level t alone."""
    clusters = levels[: way.depth] if way.depth > 0 else levels[-way.depth - 1 : -way.depth]
    passes = PUBLISHED_PASSES if way.published else SHORT_PASSES
    settings = level_settings(clusters, seed, way.rounds, way.r, passes, unit, way.published)
    began = time.process_time()
    tree = fit_tree(MemoryGroup([{"vectors": vectors}], THREADS), settings)
    spent = time.process_time() - began
    leaves = tree.centroids[0]
    assert leaves is not None
    return Fitted(leaves, tree.parents, nearest(vectors, leaves, THREADS)[0]), spent


def compare(metrics: Sequence[str], levels: Sequence[int], cases: Sequence[Case], tried: Sequence[Way]) -> None:
    """Print every way with its interval, after a random sample of equal size."""
    random = [case.measure(at_random(len(case.vectors), case.target, seed)) for seed, case in enumerate(cases)]
    show("random", metrics, np.array(random), None, 0.0)
    first: NDArray[np.float64] | None = None
    for way in tried:
        found, spent = [], []
        for seed, case in enumerate(cases):
            tree, seconds = fit(case.vectors, levels, way, seed, case.unit)
            found.append(case.measure(balanced(tree, case.target, seed)))
            spent.append(seconds)
        values = np.array(found)
        show(way.name, metrics, values, first, float(np.mean(spent)))
        first = values if first is None else first


def show(
    name: str, metrics: Sequence[str], values: NDArray[np.float64], first: NDArray[np.float64] | None, seconds: float
) -> None:
    """values (seeds, metrics)."""
    parts = []
    for number, metric in enumerate(metrics):
        own = values[:, number]
        text = f"{metric} {own.mean():.3f} ({_interval(own)})"
        if first is not None:
            text += f", difference {np.mean(own - first[:, number]):+.3f} ({_interval(own - first[:, number])})"
        parts.append(text)
    line(name, f"{seconds:.1f} s", "; ".join(parts))


def _interval(values: NDArray[np.float64]) -> str:
    found = over_seeds(values)
    assert found is not None
    return f"{found[0]:+.3f} to {found[1]:+.3f}"


# --- pools ------------------------------------------------------------------------------------------------------------


def disc(_: Path) -> None:
    points = bench_points("disc")
    if points is None:
        return
    print(f"\ndisc: {DISC_SAMPLE:,} of {len(points):,} points, levels {list(DISC_LEVELS)}")
    case = Case(points, DISC_SAMPLE, False, lambda rows: [kl_to_uniform(points[rows])])
    compare(["KL"], DISC_LEVELS, [case] * len(SEEDS), ways(DISC_LEVELS, DISC_NEAREST))


def classes(labels: Indices) -> Measure:
    """Evenness of the classes of a sample, and the share of the smaller half of the classes that it holds."""
    sizes = np.bincount(labels)
    small = np.argsort(sizes, kind="stable")[: len(sizes) // 2]

    def measure(rows: Indices) -> list[float]:
        held = np.bincount(labels[rows], minlength=len(sizes))
        return [evenness(held), float(held[small].sum() / sizes[small].sum())]

    return measure


def cifar_cases() -> Iterator[Case]:
    from bench.ablations.cifar import long_tail, parts
    from bench.ablations.cifar_student import teacher
    from bench.ablations.judge import teacher_summaries

    name, (_, others) = teacher(), parts()
    for seed in SEEDS:
        pool = long_tail(others, seed)
        pool = pool.take(np.flatnonzero([not source.startswith("copy/") for source in pool.names]))
        vectors = teacher_summaries(name, pool.images, f"cifar-tail-{seed}").astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        yield Case(vectors, int(SHARE * len(pool)), True, classes(pool.labels))


def cifar(_: Path) -> None:
    cases = list(cifar_cases())
    print(f"\nCIFAR-10, 100 : 1, {len(cases[0].vectors):,} images, levels {list(CIFAR_LEVELS)}")
    compare(["evenness", "smaller half"], CIFAR_LEVELS, cases, ways(CIFAR_LEVELS))


def clip_art(folder: Path) -> None:
    if not folder.is_dir():
        print(f"\nclip-arts: skipped, {folder} does not exist; python -m pipelines.openclipart {folder.parent}")
        return
    pool = clip_arts(folder)
    vectors = pool.vectors["descriptor"]
    print(f"\nOpenClipart, {len(vectors):,} images, levels {list(CLIP_ART_LEVELS)}")
    case = Case(vectors, int(SHARE * len(vectors)), True, classes(pool.labels))
    compare(["evenness", "smaller half"], CLIP_ART_LEVELS, [case] * len(SEEDS), ways(CLIP_ART_LEVELS))


POOLS = {"disc": disc, "cifar": cifar, "clip-arts": clip_art}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pools", nargs="*", help=f"of {', '.join(POOLS)}; all by default")
    parser.add_argument("--clip-arts", type=Path, default=ROOT / ".cache/openclipart/images")
    arguments = parser.parse_args()
    for name in arguments.pools or POOLS:
        if name not in POOLS:
            parser.error(f"unknown pool {name!r}; choose from {', '.join(POOLS)}")
        POOLS[name](arguments.clip_arts)


if __name__ == "__main__":
    print(machine())
    main()
