"""Is a balanced sample better than a random one? Every method on every pool, paired with ten random samples.

python -m bench.select.balance [--choose [0]] [--pools NAME …] [--methods NAME …]      resumes, then prints the table

--choose uses another ten seeds than the report, for decisions that the report then judges. A cell is a pool, a share
(10, 25, 50 %) and a metric; it is better or worse where the 95 % interval of the paired difference over ten seeds
(Student's t) excludes 0. Metrics: evenness of the classes, the share of the smaller half of the classes that is held,
kNN (k = 5) of held-out rows that are distributed as the pool (mix) and with equal classes; on the disc, KL to the
uniform density. Also counted, and not judged: classes lost, share of rows that belong to no class. In points, higher is
better.

The rule for a default: of the ways whose mean is in no cell more than 1 point below random, the one with the most cells
above; if there is none, the one whose worst cell is least bad.
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
TENS, REPORTING = 10, 20
"""Seeds for a decision are those of a ten below TENS, 0 to 9 for ten 0; REPORTING is the ten of the report."""
TOLERATED = 1.0
"""Points below random that the mean of a cell may be."""
RANDOMS = 10
NEIGHBOURS = 5
PHOTOS = ("CIFAR-10", "ImageNet")
"""How the names of pools of photos begin."""
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
    parser.add_argument("--choose", type=int, nargs="?", const=0, default=REPORTING, choices=range(TENS))
    parser.add_argument("--pools", nargs="*", default=list(POOLS), choices=list(POOLS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("FIRST", "STOP"), help="in place of ten")
    parser.add_argument("--details", action="store_true", help="also a line per pool, share and metric")
    options = parser.parse_args()
    print(machine())
    seeds = range(*options.seeds) if options.seeds else range(10 * options.choose, 10 * options.choose + 10)
    values: dict[tuple[str, float, str, str], dict[int, float]] = defaultdict(dict)
    spent: dict[str, list[float]] = defaultdict(list)
    for name, seed, method, scores, seconds in cells(options.pools, options.methods, seeds):
        spent[method].append(seconds)
        for share, found in zip(SHARES, scores, strict=True):
            for metric, value in found.items():
                values[name, share, metric, method][seed] = value
    print(f"seeds {seeds.start} to {seeds.stop - 1}; points against random, means over pools and shares")
    print(
        "| method | better | worse | cells | evenness, photos | others | kNN, photos | others | no class | lost | s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    tables = {method: differences(method, values) for method in options.methods}
    for method, table in tables.items():
        print(summary(method, table, float(np.mean(spent[method])) if spent[method] else 0.0))
    print("\nBelow random by more than 0.5 points on average over the shares of a pool:")
    for method, table in tables.items():
        print(f"- {method}: {below(table)}")
    print("\nThe worst cell of each:")
    print(f"By the rule: {ruled(tables)}")
    if options.details:
        for method, table in tables.items():
            print(f"\n{method}")
            for (name, share, metric), found in table.items():
                low, high = over_seeds(found) or (float("nan"), float("nan"))
                print(f"    {name:<30} {share:.0%} {metric:<14} {found.mean():+6.2f} ({low:+.2f} to {high:+.2f})")


Table = dict[tuple[str, float, str], NDArray[np.float64]]
"""(pool, share, metric) -> differences to random (seeds,)."""


def differences(method: str, values: dict[tuple[str, float, str, str], dict[int, float]]) -> Table:
    table = {}
    for (name, share, metric, who), found in values.items():
        if who == method:
            base = values[name, share, metric, "random"]
            table[name, share, metric] = np.array([found[seed] - base[seed] for seed in sorted(found)])
    return table


def summary(method: str, table: Table, seconds: float) -> str:
    intervals = [over_seeds(found) for (*_, metric), found in table.items() if metric in JUDGED]
    decided = [interval for interval in intervals if interval is not None]
    better, worse = sum(low > 0 for low, _ in decided), sum(high < 0 for _, high in decided)

    def mean(metric: str, photos: bool | None = None) -> str:
        some = [
            found.mean()
            for (name, _, of), found in table.items()
            if of == metric and photos in (None, name.startswith(PHOTOS))
        ]
        return f"{np.mean(some):+.1f}" if some else ""

    means = [mean("evenness", True), mean("evenness", False), mean("kNN mix", True), mean("kNN mix", False)]
    cells = [method, str(better), str(worse), str(len(decided)), *means, mean("no class"), mean("classes lost")]
    return f"| {' | '.join(cells)} | {seconds:.1f} |"


def ruled(tables: dict[str, Table]) -> str:
    worst, above = {}, {}
    for method, table in tables.items():
        judged = {cell: found for cell, found in table.items() if cell[2] in JUDGED}
        worst[method] = min((float(found.mean()), cell) for cell, found in judged.items())
        above[method] = sum((over_seeds(found) or (0.0, 0.0))[0] > 0 for found in judged.values())
    for method, (mean, (name, share, metric)) in worst.items():
        print(f"- {method}: {above[method]} cells above, the worst {mean:+.1f} ({name}, {share:.0%}, {metric})")
    fit = [method for method, (mean, _) in worst.items() if mean >= -TOLERATED]
    chosen = max(fit, key=lambda method: above[method]) if fit else max(worst, key=lambda method: worst[method][0])
    return chosen if fit else f"{chosen}, whose worst cell is least bad; no way is within {TOLERATED:g} point"


def below(table: Table) -> str:
    by_pool: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (name, _, metric), found in table.items():
        if metric in ("evenness", "kNN mix"):
            by_pool[name, metric].append(float(found.mean()))
    low = sorted((float(np.mean(some)), name, metric) for (name, metric), some in by_pool.items())
    return "; ".join(f"{name} {metric} {mean:+.1f}" for mean, name, metric in low if mean < -0.5) or "none"


if __name__ == "__main__":
    main()
