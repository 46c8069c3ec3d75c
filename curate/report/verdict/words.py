"""The comparison with a random sample as text: one line of verdict, warnings about labels, and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from curate.kernels.interval import LEAST, Figure
from curate.report.survey.rows import LabelCounts
from curate.report.verdict.compare import ENTROPY, KNN, NEARNESS, SMALL, SPACING, Comparison

NAMES = {ENTROPY: "labels' entropy", SMALL: "rare labels", SPACING: "spacing", KNN: "kNN", NEARNESS: "coverage"}
LOSS, NAMED = 0.8, 5
"""Share of its images whose loss is worth a warning; labels that a warning names."""


def against_random(found: Comparison | None, labels: LabelCounts, whole: bool = True) -> dict[str, Any] | None:
    """What the page, `curate run` and `balance.json` say. `state`: better or worse if some figure is and none is the
    opposite, otherwise undecided; `lines`: figure, selection, random sample, interval of the difference, state. labels:
    of all rows; not `whole`: of a few.
    """
    if found is None:
        return None
    lines = []
    for name, one in found.figures.items():
        interval = f"{show(name, one.low, '+')} to {show(name, one.high, '+')}"
        lines.append((name, show(name, one.selection), show(name, one.random), interval, one.verdict))
    decided = {line[-1] for line in lines} - {"undecided"}
    text = said(found.figures, found.balanced)
    if not lines:
        text += f": fewer than {LEAST} samples with a label or an embedding"
    elif found.balanced:
        text += "; the labels were balanced already"
    if found.estimated_from and ENTROPY in found.figures:
        text += f"; labels' entropy is estimated from {found.estimated_from:,} labelled images"
    if lines and ENTROPY not in found.figures:
        text += f"; {unlabelled(labels)}, nothing is known about the balance of subjects"
    return {
        "verdict": text,
        "state": decided.pop() if len(decided) == 1 else "undecided",
        "warnings": list(warnings(labels)) if whole else [],
        "lines": lines,
        "samples": found.samples,
    }


def said(figures: Mapping[str, Figure], balanced: bool = False) -> str:
    """One line that names the figures that are better, worse and undecided. If the labels were `balanced` already, a
    gain of theirs is not named."""
    states: dict[str, list[str]] = {"better": [], "worse": [], "undecided": []}
    for name, one in figures.items():
        if one.verdict == "worse" or not (balanced and name in (ENTROPY, SMALL)):
            states[one.verdict].append(NAMES[name] if one.verdict == "undecided" else _sides(name, one))
    parts = [f"{state}: {', '.join(names)}" for state, names in states.items() if names]
    first, colon, rest = "; ".join(parts or ["undecided"]).partition(":")
    return f"{first} {'against' if first == 'undecided' else 'than'} a random sample{colon}{rest}"


def _sides(name: str, one: Figure) -> str:
    """A distance alone says little: it has no figures here."""
    if name in (SPACING, NEARNESS):
        return NAMES[name]
    return f"{NAMES[name]} {show(name, one.selection).partition(' ')[0]} against {show(name, one.random)}"


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
