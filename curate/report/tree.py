"""Second pass of the report: which clusters to show, the pictures nearest to their centroids, and their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.hashing import KEY_HEX, ranks
from curate.core.view import View
from curate.report.profile import Facts, Profile
from curate.report.rows import Reservoir, integers, label_column
from curate.report.stats import biggest_and_tail
from curate.report.survey import FACTS, READ_SHARDS, Level, Scope, Survey
from curate.report.words import document_counts, typical_words

CAPTIONS_PER_CLUSTER = 64


@dataclass
class Node:
    """One cluster that is shown."""

    level: int
    """1 = finest."""
    id: int
    before: int
    after: int
    in_tail: bool = False
    """Drawn from the small ones, not among the biggest."""
    name: str = ""
    children: list[Node] = field(default_factory=list)
    hidden: int = 0
    """Children that are not shown, and the pictures in them."""
    hidden_before: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Of a leaf: its rows closest to the centroid, closest first."""
    facts: Facts | None = None
    """What a profile says of it."""

    def leaves(self) -> Iterator[Node]:
        if self.level == 1:
            yield self
        for child in self.children:
            yield from child.leaves()

    def nodes(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.nodes()


def choose(levels: Sequence[Level], fanouts: Sequence[int], seed: int) -> Node:
    """A root above the coarsest level, holding what is shown of the tree: `fanouts` children a node, coarsest first."""
    root = Node(level=len(levels) + 1, id=0, before=int(levels[-1].before.sum()), after=int(levels[-1].after.sum()))
    _choose_children(root, levels, list(fanouts), seed)
    return root


def _choose_children(node: Node, levels: Sequence[Level], fanouts: list[int], seed: int) -> None:
    if node.level == 1:
        return
    level = levels[node.level - 2]
    held = level.before > 0
    if node.level <= len(levels):
        held &= level.parent[: len(held)] == node.id
    ids = np.flatnonzero(held if level.seen is None else held & level.seen)
    sizes = level.before[ids]
    shown, tail = biggest_and_tail(sizes, _id_ranks(seed, ids), fanouts[0])
    for place in shown + tail:
        own = int(ids[place])
        child = Node(node.level - 1, own, int(level.before[own]), int(level.after[own]), in_tail=place in tail)
        node.children.append(child)
        _choose_children(child, levels, fanouts[1:], seed)
    node.hidden = int(held.sum()) - len(node.children)
    node.hidden_before = int(level.before[held].sum()) - sum(child.before for child in node.children)


def _id_ranks(seed: int, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    return ranks(seed, [f"{number:0{KEY_HEX}x}" for number in ids.tolist()])


@dataclass
class Gathered:
    leaf_rows: dict[int, list[dict[str, Any]]]
    captions: dict[tuple[int, int], list[str]]
    """Captions (and labels) sampled by (level, cluster)."""
    keepers: dict[str, dict[str, Any]]
    """Rows asked for by key."""


def gather(view: View, scope: Scope, root: Node | None, keys: Sequence[str], per_leaf: int, seed: int) -> Gathered:
    """One pass over the shards that are read: the `per_leaf` rows closest to the centroid of every shown leaf, and
    captions of every shown cluster; then the rows of `keys`, wherever they lie."""
    shown = {level: [] for level in range(1, scope.levels + 1)} if root else {}
    for node in root.nodes() if root else ():
        shown.get(node.level, []).append(node.id)
    leaves = Reservoir(per_leaf)
    captions = {level: Reservoir(CAPTIONS_PER_CLUSTER) for level in shown}
    label = label_column(scope.label) if scope.label else None
    names = scope.names(*FACTS, scope.caption, "caption", "centroid_distance", label, *scope.clusters)
    names += scope.names("rejected_by", "reject_reason", "copies")
    for table in view.tables(names, READ_SHARDS) if root else ():
        rows = table.filter(pa.array(scope.reached(table)))
        order = ranks(seed, rows.column("key").to_pylist())
        for level, ids in shown.items():
            _add_cluster_rows(rows, scope, level, np.array(ids), order, captions[level], leaves)
    said: dict[tuple[int, int], list[str]] = {}
    for level, kept in captions.items():
        for group, sampled in kept.rows().items():
            said[level, group] = [row["said"] for row in sampled if row["said"]]
    keepers = {row["key"]: row for table in view.rows_of(keys, names) for row in table.to_pylist()} if keys else {}
    return Gathered(leaves.rows(), said, keepers)


def _add_cluster_rows(
    rows: pa.Table,
    scope: Scope,
    level: int,
    ids: NDArray[np.int64],
    order: NDArray[np.uint64],
    captions: Reservoir,
    leaves: Reservoir,
) -> None:
    groups = integers(rows, f"cluster_{level}", -1)
    here = np.flatnonzero(np.isin(groups, ids))
    table, groups, order = rows.take(here), groups[here], order[here]
    captions.add(pa.table({"said": scope.said(table)}), groups, order)
    if level == 1:
        if "centroid_distance" in table.column_names:
            distance = pc.fill_null(table.column("centroid_distance").cast(pa.float64()), np.inf)
            leaves.add(table, groups, np.nan_to_num(distance.to_numpy(), nan=np.inf))
        else:
            leaves.add(table, groups, order)


def fill(root: Node, found: Gathered, survey: Survey, profile: Profile | None = None) -> None:
    """Give every node its name and what the profile says of it, and every leaf its rows."""
    background, number = document_counts(survey.said)
    for node in root.nodes():
        node.facts = profile.of(node.level, node.id) if profile else None
        captions = found.captions.get((node.level, node.id), [])
        node.name = node.facts.name if node.facts else ""
        node.name = node.name or ", ".join(typical_words(captions, background, number))
        if node.level == 1:
            node.rows = found.leaf_rows.get(node.id, [])
