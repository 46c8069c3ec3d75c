"""Sections about the images: rejects, balance of clusters and labels, the browsable tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.html.charts import RankChart, rank_chart
from curate.report.page.images import Gallery, ImageCard
from curate.report.page.terms import human, meaning
from curate.report.survey.rows import LabelCounts
from curate.report.survey.spread import Spread, spread
from curate.report.survey.survey import LevelSizes, Survey
from curate.report.survey.tree import ShownCluster

STRIP_IMAGES = 6
LABELS_SHOWN = 15
GROUPS_OPEN = 4


@dataclass(frozen=True)
class RejectGroup:
    """Images that one stage rejected for one reason."""

    anchor: str
    stage: str
    reason: str
    meaning: str
    count: int
    images: list[ImageCard]
    open: bool


def reject_groups(
    found: Survey, gallery: Gallery, keepers: Mapping[str, Any], order: Sequence[str]
) -> list[RejectGroup]:
    """Groups by stage in DAG order, then largest first."""
    place = {stage: index for index, stage in enumerate(order)}
    pairs = sorted(found.rejected, key=lambda pair: (place.get(pair[0], len(place)), -found.rejected[pair], pair[1]))
    largest = set(sorted(pairs, key=lambda pair: -found.rejected[pair])[:GROUPS_OPEN])
    groups = []
    for number, (stage, reason) in enumerate(pairs):
        images = [_reject(row, gallery, keepers) for row in found.reject_rows[stage, reason]]
        count = found.rejected[stage, reason]
        opened = (stage, reason) in largest
        groups.append(RejectGroup(f"rejected-{number}", stage, human(reason), meaning(reason), count, images, opened))
    return groups


def _reject(row: Mapping[str, Any], gallery: Gallery, keepers: Mapping[str, Any]) -> ImageCard:
    keeper = keepers.get(keeper_of(row) or "")
    return gallery.card(row, keeper=gallery.card(keeper) if keeper else None)


def keeper_of(row: Mapping[str, Any]) -> str | None:
    """Key of the image that this rejected row duplicates."""
    reason = row.get("reject_reason") or ""
    other = (row.get("semantic_of") if reason == "semantic_duplicate" else None) or row.get("duplicate_of")
    return other if other != row["key"] and "duplicate" in reason else None


@dataclass(frozen=True)
class Balance:
    """Sizes of clusters or labels, before and after the selection (`after`: None without a selection)."""

    title: str
    chart: RankChart
    before: Spread
    after: Spread | None


def balance(
    title: str, before: NDArray[np.int64], after: NDArray[np.int64] | None, what: str, noun: str = "image"
) -> Balance:
    series = [("before", "before", before)] + ([("after", "after", after)] if after is not None else [])
    return Balance(
        title,
        rank_chart(series, what, f"{noun}s in it", f"{noun.capitalize()}s"),
        spread(before),
        None if after is None else spread(after),
    )


def level_title(level: int, levels: int) -> str:
    """`level` 1 is the finest."""
    if levels == 1:
        return "Clusters"
    ends = {1: "finest", levels: "coarsest"}
    return f"Level {level}" + (f", {ends[level]}" if level in ends else "")


def balances(levels: Sequence[LevelSizes], selected: bool, noun: str = "image") -> list[Balance]:
    """Coarsest level first."""
    found = []
    for number, level in reversed(list(enumerate(levels, 1))):
        before, after = level.compared()
        kept = after if selected else None
        found.append(balance(level_title(number, len(levels)), before, kept, "cluster", noun))
    return found


@dataclass(frozen=True)
class LabelBar:
    name: str
    before: int
    after: int
    before_width: float
    """Share of all labelled images before the selection, in percent of the largest share shown."""
    after_width: float


@dataclass(frozen=True)
class LabelTable:
    balance: Balance
    bars: list[LabelBar]
    """The most common labels."""
    rest: tuple[int, int, int]
    """Number of labels that are not shown, and their images before and after."""
    unlabelled: tuple[int, int]
    total: tuple[int, int]
    """Labelled images before and after."""


def label_table(labels: LabelCounts, selected: bool) -> LabelTable | None:
    before, after = labels.counts()
    if not before.sum():
        return None
    total = (int(before.sum()) + labels.others[0], int(after.sum()) + labels.others[1])
    order = np.lexsort((np.array(labels.names), -before))
    shown, rest = order[:LABELS_SHOWN].tolist(), order[LABELS_SHOWN:]
    hidden = (len(rest), int(before[rest].sum()) + labels.others[0], int(after[rest].sum()) + labels.others[1])
    shares = np.stack([before / max(total[0], 1), after / max(total[1], 1)])
    widths = 100 * shares / shares[:, shown].max()
    bars = [
        LabelBar(labels.names[place], int(before[place]), int(after[place]), *widths[:, place].tolist())
        for place in shown
    ]
    held = before > 0
    curves = balance("Labels", before[held], after[held] if selected else None, "label")
    return LabelTable(curves, bars, hidden, (labels.unlabelled[0], labels.unlabelled[1]), total)


@dataclass(frozen=True)
class Branch:
    """A cluster of the browsable tree."""

    node: ShownCluster
    title: str
    children: list[Branch]
    images: list[ImageCard]
    strip: list[ImageCard]
    """Typical images, shown while the cluster is closed."""
    scale: int
    """The largest count among its siblings, before or after: the full length of their bars."""


def branch(node: ShownCluster, gallery: Gallery, selected: bool, scale: int) -> Branch:
    """A cluster whose only child has the same images shows that child's children instead."""
    while len(node.children) == 1 and not node.hidden and node.children[0].level > 1:
        only = node.children[0]
        node = replace(node, children=only.children, hidden=only.hidden, hidden_before=only.hidden_before)
    top = max((max(child.before, child.after) for child in node.children), default=1)
    children = [branch(child, gallery, selected, top) for child in node.children]
    images = [_exemplar(row, gallery, selected) for row in node.rows]
    mixed = chain.from_iterable(zip_longest(*(child.strip for child in children)))
    strip = images or [one for one in mixed if one is not None]
    title = node.name or f"Cluster {node.id:,}"
    return Branch(node, title, children, images, strip[:STRIP_IMAGES], max(scale, 1))


def _exemplar(row: Mapping[str, Any], gallery: Gallery, selected: bool) -> ImageCard:
    copies = row.get("copies") or 0
    if not selected:
        return gallery.card(row)
    note = "" if not copies else "✓ selected" if copies == 1 else f"✓ selected × {copies:,}"
    return gallery.card(row, note=note, selected=copies > 0)
