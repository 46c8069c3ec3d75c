"""The comparison with a random sample as text: one line of verdict, warnings about labels, and figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from curate.kernels.interval import LEAST
from curate.report.survey.rows import LabelCounts
from curate.report.verdict.compare import ENTROPY, KNN, SMALL, Comparison

LOSS, NAMED = 0.8, 5
"""Share of its images whose loss is worth a warning; labels that a warning names."""


def against_random(found: Comparison | None, labels: LabelCounts, whole: bool = True) -> dict[str, Any] | None:
    """What the page, `curate run` and `balance.json` say. The verdict is that of the first figure, and names every
    other one that is worse than random. `lines`: figure, selection, random sample, interval of the difference, state.
    labels: of all rows; not `whole`: of a few.
    """
    if found is None:
        return None
    lines = []
    for name, one in found.figures.items():
        interval = f"{show(name, one.low, '+')} to {show(name, one.high, '+')}"
        lines.append((name, show(name, one.selection), show(name, one.random), interval, one.verdict))
    said = {"warnings": list(warnings(labels)) if whole else [], "lines": lines, "samples": found.samples}
    if not lines:
        text = f"better balanced than random: undecided, fewer than {LEAST} samples with a label or an embedding"
        return {"verdict": text} | said
    name, first = next(iter(found.figures.items()))
    by = show(name, abs(first.selection - first.random))
    answer = {"better": f"yes, by {by}", "worse": f"no, worse by {by}"}.get(first.verdict, "undecided")
    if found.balanced:
        answer = "no: these images were balanced already"
        answer += f", and the selection is worse by {by}" if first.verdict == "worse" else ""
    sides = [f"{line[0]} {line[1]}, random {line[2]}" for line in lines]
    text = f"{'better balanced' if name == ENTROPY else 'more evenly spaced'} than random: {answer} ({sides[0]}; "
    text += f"95 % interval of the difference {lines[0][3]}"
    estimated = found.estimated_from if name == ENTROPY else None
    text += f"; estimated from {estimated:,} labelled images)" if estimated else ")"
    for side, line in zip(sides[1:], lines[1:], strict=True):
        text += f"; worse than random: {side}" if line[4] == "worse" else ""
    text += "" if name == ENTROPY else f"; {unlabelled(labels)}, nothing is known about the balance of subjects"
    return {"verdict": text} | said


def unlabelled(labels: LabelCounts) -> str:
    """Why the comparison has no figure of labels."""
    rows = int(labels.counts()[0].sum())
    if rows >= LEAST:
        return f"with one label for all {rows:,} labelled images"
    return f"with {rows:,} labelled images, fewer than {LEAST}" if rows else "without labels"


def show(name: str, value: float, sign: str = "") -> str:
    if name in (SMALL, KNN):
        return f"{100 * value:{sign}.1f} %"
    return f"{value:{sign}.3f}{' bits' if name == ENTROPY else ''}"


def warnings(labels: LabelCounts) -> Iterator[str]:
    """About labels that vanish, or that lose more than LOSS of their images and half of what random would leave."""
    before, after = labels.counts()
    share = min(1.0, after.sum() / max(1, before.sum()))
    few = (after > 0) & (after < (1 - LOSS) * before) & (after < share * before / 2)
    by_chance = ((1 - share) ** before[before > 0]).sum()
    vanish = f"vanish (about {by_chance:,.0f} would in a random sample)"
    for which, what in ((after == 0, vanish), (few, f"lose more than {100 * LOSS:.0f} % of their images")):
        places = [place for place in np.lexsort((-before, after)).tolist() if which[place] and before[place]]
        named = [f"{labels.names[place]!r} {before[place]:,} -> {after[place]:,}" for place in places[:NAMED]]
        named += [f"{len(places) - NAMED:,} more"] if len(places) > NAMED else []
        if named:
            yield f"{len(places):,} of {(before > 0).sum():,} labels {what}: {', '.join(named)}"
