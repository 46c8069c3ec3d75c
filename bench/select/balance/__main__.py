"""Is a balanced sample better than a random one? Every method on every pool, paired with ten random samples.

python -m bench.select.balance [--choose] [--pools NAME …] [--methods NAME …]      resumes; prints the table at its end

--choose uses other seeds than the report, for decisions that the report then judges. A cell is a pool, a share (10, 25,
50 %) and a metric; it is better or worse where the 95 % interval of the paired difference over ten seeds (Student's t)
excludes 0. Metrics: evenness of the classes, the share of the smaller half of the classes that is held, kNN (k = 5) of
held-out rows that are distributed as the pool (mix) and with equal classes; on the disc, KL to the uniform density.
Also counted, and not judged: classes lost, share of rows that belong to no class. In points, higher is better.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bench.ablations.statistics import over_seeds
from bench.kit.features import kl_to_uniform
from bench.kit.measure import machine
from bench.select.balance.methods import METHODS, Clustered, random
from bench.select.balance.pools import POOLS, Pool, home
from curate.kernels.evenness import evenness

SHARES = (0.1, 0.25, 0.5)
CHOOSING, REPORTING = range(10), range(100, 110)
RANDOMS = 10
NEIGHBOURS = 5
JUDGED = ("evenness", "smaller half", "kNN mix", "kNN equal", "minus KL")
Indices = NDArray[np.int64]
Scores = dict[str, float]


def measure(pool: Pool, rows: Indices) -> Scores:
    """In points of a hundred; KL in hundredths of a nat."""
    if pool.labels is None:
        return {"minus KL": -100 * kl_to_uniform(pool.vectors[rows])}
    assert pool.asked is not None and pool.asked_labels is not None
    labelled = pool.labels[pool.labels >= 0]
    sizes = np.bincount(labelled)
    there = np.flatnonzero(sizes)
    held = np.bincount(pool.labels[rows][pool.labels[rows] >= 0], minlength=len(sizes))
    small = there[np.argsort(sizes[there], kind="stable")][: len(there) // 2]
    cosine = pool.asked @ pool.vectors[rows].T
    near = np.argpartition(-cosine, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    votes = np.zeros((len(near), len(sizes) + 1), dtype=np.float64)
    for column in near.T:
        np.add.at(
            votes, (np.arange(len(near)), pool.labels[rows][column]), 1 + 1e-3 * cosine[np.arange(len(near)), column]
        )
    right = votes[:, :-1].argmax(1) == pool.asked_labels
    by_class = [right[pool.asked_labels == label].mean() for label in np.unique(pool.asked_labels)]
    return {
        "evenness": 100 * evenness(held[there]),
        "smaller half": 100 * float(held[small].sum() / sizes[small].sum()),
        "kNN mix": 100 * float(right.mean()),
        "kNN equal": 100 * float(np.mean(by_class)),
        "classes lost": float((held[there] == 0).sum()),
        "no class": 100 * float((pool.labels[rows] < 0).mean()),
    }


def cells(pools: list[str], methods: list[str], seeds: range) -> Iterator[tuple[str, int, str, list[Scores], float]]:
    for name in pools:
        for seed in seeds:
            pool: Pool | None = None
            for method in ["random", *methods]:
                place = home() / "cells" / name / f"{seed}" / f"{method}.json"
                if not place.exists():
                    pool = pool or POOLS[name](seed)
                    if pool is None:
                        break
                    place.parent.mkdir(parents=True, exist_ok=True)
                    partial = place.with_suffix(".tmp")
                    partial.write_text(json.dumps(_cell(pool, method, seed)))
                    partial.rename(place)
                found = json.loads(place.read_text())
                yield name, seed, method, found["scores"], found["seconds"]


def _cell(pool: Pool, method: str, seed: int) -> dict[str, object]:
    targets = [int(share * len(pool.vectors)) for share in SHARES]
    if method != "random":
        way = METHODS[method]
        fit = way.fitted(pool, seed).seconds if isinstance(way, Clustered) else 0.0
        started = time.process_time()
        taken = way(pool, targets, seed)
        seconds = fit + time.process_time() - started
        return {"scores": [measure(pool, rows) for rows in taken], "seconds": seconds}
    drawn = [random(pool, targets, 1000 * seed + number) for number in range(RANDOMS)]
    scores = [[measure(pool, rows[place]) for rows in drawn] for place in range(len(SHARES))]
    means = [{metric: float(np.mean([one[metric] for one in some])) for metric in some[0]} for some in scores]
    return {"scores": means, "seconds": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--pools", nargs="*", default=list(POOLS), choices=list(POOLS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--details", action="store_true", help="also a line per pool, share and metric")
    options = parser.parse_args()
    print(machine())
    seeds = CHOOSING if options.choose else REPORTING
    values: dict[tuple[str, float, str, str], dict[int, float]] = defaultdict(dict)
    spent: dict[str, list[float]] = defaultdict(list)
    for name, seed, method, scores, seconds in cells(options.pools, options.methods, seeds):
        spent[method].append(seconds)
        for share, found in zip(SHARES, scores, strict=True):
            for metric, value in found.items():
                values[name, share, metric, method][seed] = value
    for method in options.methods:
        show(method, values, float(np.mean(spent[method])) if spent[method] else 0.0, options.details)


def show(
    method: str, values: dict[tuple[str, float, str, str], dict[int, float]], seconds: float, details: bool
) -> None:
    better = worse = count = 0
    means: dict[str, list[float]] = defaultdict(list)
    by_pool: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (name, share, metric, who), found in values.items():
        if who != method:
            continue
        base = values[name, share, metric, "random"]
        differences = np.array([found[seed] - base[seed] for seed in sorted(found)])
        means[metric].append(float(differences.mean()))
        by_pool[name, metric].append(float(differences.mean()))
        interval = over_seeds(differences)
        if metric in JUDGED and interval is not None:
            count, better, worse = count + 1, better + (interval[0] > 0), worse + (interval[1] < 0)
            if details:
                text = f"{differences.mean():+6.2f} ({interval[0]:+.2f} to {interval[1]:+.2f})"
                print(f"    {name:<30} {share:.0%} {metric:<14} {text}")
    averages = ", ".join(f"{metric} {np.mean(some):+.2f}" for metric, some in means.items())
    low = sorted((float(np.mean(some)), key) for key, some in by_pool.items() if key[1] in ("evenness", "kNN mix"))
    lows = "; ".join(f"{key[0]} {key[1]} {mean:+.1f}" for mean, key in low if mean < -0.5)
    print(f"{method:<32} better {better:>3}, worse {worse:>3} of {count}; {seconds:.1f} s; {averages}")
    print(f"    pools below random by more than 0.5: {lows or 'none'}")


if __name__ == "__main__":
    main()
