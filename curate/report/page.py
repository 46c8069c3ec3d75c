"""What the page says, section by section, as plain values: the template only lays them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.nouns import Manifest
from curate.report.charts import RankChart, rank_chart
from curate.report.pictures import Album, Picture
from curate.report.rows import LabelCounts
from curate.report.stats import Spread, spread
from curate.report.survey import Level, Survey
from curate.report.terms import human, meaning
from curate.report.tree import Node

STRIP_PICTURES = 6
LABELS_SHOWN = 15
GROUPS_OPEN = 4


@dataclass(frozen=True)
class RejectGroup:
    """The pictures that one stage refused for one reason."""

    anchor: str
    stage: str
    reason: str
    meaning: str
    count: int
    pictures: list[Picture]
    open: bool


def reject_groups(found: Survey, album: Album, keepers: Mapping[str, Any], order: Sequence[str]) -> list[RejectGroup]:
    """By stage in DAG order, then biggest first."""
    place = {stage: index for index, stage in enumerate(order)}
    pairs = sorted(found.rejected, key=lambda pair: (place.get(pair[0], len(place)), -found.rejected[pair], pair[1]))
    biggest = set(sorted(pairs, key=lambda pair: -found.rejected[pair])[:GROUPS_OPEN])
    groups = []
    for number, (stage, reason) in enumerate(pairs):
        pictures = [_rejected(row, album, keepers) for row in found.reject_rows[stage, reason]]
        count = found.rejected[stage, reason]
        opened = (stage, reason) in biggest
        groups.append(RejectGroup(f"refused-{number}", stage, human(reason), meaning(reason), count, pictures, opened))
    return groups


def _rejected(row: Mapping[str, Any], album: Album, keepers: Mapping[str, Any]) -> Picture:
    keeper = keepers.get(keeper_of(row) or "")
    return album.picture(row, keeper=album.picture(keeper) if keeper else None)


def keeper_of(row: Mapping[str, Any]) -> str | None:
    """Key of the picture this refused row is a duplicate of."""
    reason = row.get("reject_reason") or ""
    other = (row.get("semantic_of") if reason == "semantic_duplicate" else None) or row.get("duplicate_of")
    return other if other != row["key"] and "duplicate" in reason else None


@dataclass(frozen=True)
class Step:
    """One line of the funnel."""

    name: str
    op: str
    before: int
    after: int
    refused: list[tuple[str, int, str]]
    """(reason, rows, anchor in the gallery or "")."""
    copies: int | None
    items: int | None
    """Texts that go on, where these are chosen one by one."""
    counted: bool
    let_on: int
    """Rows without facts that go on all the same (keep_null)."""
    before_share: float
    after_share: float
    """Widths of the bars, percent of the longest."""

    @property
    def lost(self) -> int:
        return sum(count for _, count, _ in self.refused)

    @property
    def adds_up(self) -> bool:
        return self.before - self.lost + self.let_on == self.after


def funnel(stages: Mapping[str, Manifest], groups: Sequence[RejectGroup]) -> list[Step]:
    anchors = {(group.stage, group.reason): group.anchor for group in groups}
    widest = max((manifest.entry.before for manifest in stages.values()), default=0) or 1
    steps = []
    for name, manifest in stages.items():
        entry = manifest.entry
        named = [(human(reason), count) for reason, count in entry.lost.most_common()]
        refused = [(reason, count, anchors.get((name, reason), "")) for reason, count in named]
        shares = (100 * min(1.0, count / widest) for count in (entry.before, entry.after))
        steps.append(
            Step(
                name,
                manifest.op,
                entry.before,
                entry.after,
                refused,
                entry.copies,
                entry.items,
                bool(manifest.ledger),
                entry.kept,
                *shares,
            )
        )
    return steps


@dataclass(frozen=True)
class Balance:
    """Sizes of clusters or labels, before and after the selection (`after` None without one)."""

    title: str
    chart: RankChart
    before: Spread
    after: Spread | None


def balance(title: str, before: NDArray[np.int64], after: NDArray[np.int64] | None, what: str) -> Balance:
    series = [("before", "before", before)] + ([("after", "after", after)] if after is not None else [])
    return Balance(title, rank_chart(series, what), spread(before), None if after is None else spread(after))


def level_title(level: int, levels: int) -> str:
    """`level` 1 is the finest."""
    if levels == 1:
        return "Clusters"
    ends = {1: "finest", levels: "coarsest"}
    return f"Level {level}" + (f", {ends[level]}" if level in ends else "")


def balances(levels: Sequence[Level], selected: bool) -> list[Balance]:
    """Coarsest first."""
    made = []
    for number, level in reversed(list(enumerate(levels, 1))):
        before, after = level.compared()
        made.append(balance(level_title(number, len(levels)), before, after if selected else None, "cluster"))
    return made


@dataclass(frozen=True)
class LabelBar:
    name: str
    before: int
    after: int
    before_width: float
    """Share of all labelled pictures before, as percent of the greatest share on show."""
    after_width: float


@dataclass(frozen=True)
class LabelTable:
    balance: Balance
    bars: list[LabelBar]
    """The commonest."""
    rest: tuple[int, int, int]
    """How many labels are not shown, and their pictures before and after."""
    unlabelled: tuple[int, int]
    total: tuple[int, int]
    """Labelled pictures before and after."""


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

    node: Node
    title: str
    children: list[Branch]
    pictures: list[Picture]
    strip: list[Picture]
    """Typical pictures to recognise it by while it is closed."""
    scale: int
    """The largest count among its siblings, before or after: what their bars are relative to."""


def branch(node: Node, album: Album, selected: bool, scale: int) -> Branch:
    """A cluster whose only child holds the same pictures shows that child's children instead."""
    while len(node.children) == 1 and not node.hidden and node.children[0].level > 1:
        only = node.children[0]
        node = replace(node, children=only.children, hidden=only.hidden, hidden_before=only.hidden_before)
    top = max((max(child.before, child.after) for child in node.children), default=1)
    children = [branch(child, album, selected, top) for child in node.children]
    pictures = [_exemplar(row, album, selected) for row in node.rows]
    mixed = chain.from_iterable(zip_longest(*(child.strip for child in children)))
    strip = pictures or [one for one in mixed if one is not None]
    title = node.name or f"Cluster {node.id:,}"
    return Branch(node, title, children, pictures, strip[:STRIP_PICTURES], max(scale, 1))


def _exemplar(row: Mapping[str, Any], album: Album, selected: bool) -> Picture:
    copies = row.get("copies") or 0
    if not selected:
        return album.picture(row)
    note = "" if not copies else "✓ selected" if copies == 1 else f"✓ selected × {copies:,}"
    return album.picture(row, note=note, taken=copies > 0)
