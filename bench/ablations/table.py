"""Results as a table of paired differences, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.ablations.runs import LIMIT_MINUTES, Ablation, Done
from bench.ablations.statistics import Difference, Interval, paired

HEAD = "| metric | arm | baseline | arm | difference | 95 % over seeds | 95 % over images | paper | here |"


def table(ablation: Ablation, done: Sequence[Done], seeds: Sequence[int] = ()) -> str:
    """A row per metric and pair of arms; per cent, or hundredths of a cosine or correlation. A line for each arm that
    was not reached for some of `seeds`."""
    rows = [f"\n{ablation.name}: {ablation.question} ({ablation.source})\n", HEAD, "|---" * 9 + "|"]
    reached = {name: {one.seed for one in done if one.arm == name} for name in (arm.name for arm in ablation.arms)}
    for arm, baseline in ablation.pairs:
        both = reached[arm] & reached[baseline]
        some = [one for one in done if one.seed in both]
        for metric in next((one.scores for one in some if one.arm == arm), ()):
            rows.append(_row(ablation, metric, arm, baseline, some))
    for name, own in reached.items():
        if missing := set(seeds) - own:
            rows.append(f"Not reached: {name}, seeds {', '.join(map(str, sorted(missing)))}.")
    minutes = {one.arm: [] for one in done}  # type: dict[str, list[float]]
    for one in done:
        minutes[one.arm].append(sum(one.record["cpu_seconds"].values()) / 60)
    spent = ", ".join(f"{arm} {max(values):.1f}" for arm, values in minutes.items())
    worst = max(max(values) for values in minutes.values())
    over = f" (over the limit of {LIMIT_MINUTES})" if worst > LIMIT_MINUTES else ""
    images = ", ".join(f"{one.arm} {one.record['images']:,}" for one in done if one.seed == done[0].seed)
    rows.append(f"\nCPU-minutes of a run, at most: {spent}{over}. Training images: {images}. Seeds: {_seeds(done)}.")
    return "\n".join(rows)


def difference(metric: str, arm: str, baseline: str, done: Sequence[Done]) -> tuple[float, float, Difference]:
    """Mean scores of baseline and arm, and the paired difference."""
    arms = {(one.arm, one.seed): one.scores[metric] for one in done if one.arm in (arm, baseline)}
    seeds = sorted({seed for name, seed in arms if name == arm})
    theirs, own = (np.stack([arms[name, seed] for seed in seeds]) for name in (baseline, arm))
    counted = ~np.isnan(own)
    found = paired(np.nan_to_num(own), np.nan_to_num(theirs), counted)
    means = [float(np.mean(np.nanmean(scores, axis=1))) for scores in (theirs, own)]
    return means[0], means[1], found


def _row(ablation: Ablation, metric: str, arm: str, baseline: str, done: Sequence[Done]) -> str:
    theirs, own, found = difference(metric, arm, baseline, done)
    return (
        f"| {metric} | {arm} against {baseline} | {100 * theirs:.1f} | {100 * own:.1f} | {100 * found.mean:+.2f} "
        f"| {_interval(found.over_seeds)} | {_interval(found.over_images)} "
        f"| {ablation.expected.get(arm, '')} | {found.verdict} |"
    )


def _interval(interval: Interval | None) -> str:
    return "none" if interval is None else f"{100 * interval[0]:+.2f} … {100 * interval[1]:+.2f}"


def _seeds(done: Sequence[Done]) -> str:
    return ", ".join(str(seed) for seed in sorted({one.seed for one in done}))
