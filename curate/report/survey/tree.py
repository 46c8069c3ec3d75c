"""Second pass over the pool: the clusters to show, the images nearest to their centroids, and their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.hashing import KEY_HEX, ranks
from curate.core.view import View
from curate.kernels.cluster_names import Terms, cluster_names
from curate.kernels.reservoir import Reservoir
from curate.report.survey.profile import Facts, ProfileTable
from curate.report.survey.rows import integers, label_column
from curate.report.survey.scope import FACTS, Scope, read_tables
from curate.report.survey.survey import LevelSizes, Survey

CAPTIONS_PER_CLUSTER = 64


@dataclass
class ShownCluster:
    """A cluster that is shown."""

    level: int
    """1 = finest."""
    id: int
    before: int
    after: int
    in_tail: bool = False
    """Drawn from the small clusters, not one of the largest."""
    name: str = ""
    children: list[ShownCluster] = field(default_factory=list)
    hidden: int = 0
    """Children that are not shown, and the images in them."""
    hidden_before: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The rows of a leaf closest to the centroid, closest first."""
    facts: Facts | None = None
    """Its profile, if there is one."""

    def leaves(self) -> Iterator[ShownCluster]:
        if self.level == 1:
            yield self
        for child in self.children:
            yield from child.leaves()

    def nodes(self) -> Iterator[ShownCluster]:
        yield self
        for child in self.children:
            yield from child.nodes()


def choose(levels: Sequence[LevelSizes], fanouts: Sequence[int], seed: int) -> ShownCluster:
    """A root above the coarsest level with the clusters to show: `fanouts` children per node, coarsest level first."""
    root = ShownCluster(
        level=len(levels) + 1, id=0, before=int(levels[-1].before.sum()), after=int(levels[-1].after.sum())
    )
    _choose_children(root, levels, list(fanouts), seed)
    return root


def _choose_children(node: ShownCluster, levels: Sequence[LevelSizes], fanouts: list[int], seed: int) -> None:
    if node.level == 1:
        return
    level = levels[node.level - 2]
    held = level.before > 0
    if node.level <= len(levels):
        held &= level.parent[: len(held)] == node.id
    ids = np.flatnonzero(held if level.seen is None else held & level.seen)
    sizes = level.before[ids]
    shown, tail = largest_and_tail(sizes, _id_ranks(seed, ids), fanouts[0])
    for place in shown + tail:
        own = int(ids[place])
        child = ShownCluster(node.level - 1, own, int(level.before[own]), int(level.after[own]), in_tail=place in tail)
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
    """Rows of the requested keys."""


def gather(
    view: View, scope: Scope, root: ShownCluster | None, keys: Sequence[str], per_leaf: int, seed: int
) -> Gathered:
    """One pass over the shards read: the `per_leaf` rows closest to the centroid of every shown leaf, and captions of
    every shown cluster; then the rows of `keys`, from any shard."""
    shown: dict[int, list[int]] = {level: [] for level in range(1, scope.levels + 1)} if root else {}
    for node in root.nodes() if root else ():
        shown.get(node.level, []).append(node.id)
    leaves = Reservoir(per_leaf)
    captions = {level: Reservoir(CAPTIONS_PER_CLUSTER) for level in shown}
    label = label_column(scope.label) if scope.label else None
    names = scope.names(*FACTS, scope.caption, "caption", "centroid_distance", label, *scope.clusters)
    names += scope.names("rejected_by", "reject_reason", "copies")
    for table in read_tables(view, names) if root else ():
        rows = table.filter(pa.array(scope.reached(table)))
        order = ranks(seed, rows.column("key").to_pylist())
        for level, ids in shown.items():
            _add_cluster_rows(rows, scope, level, np.array(ids), order, captions[level], leaves)
    texts: dict[tuple[int, int], list[str]] = {}
    for level, kept in captions.items():
        for group, sampled in kept.rows().items():
            texts[level, group] = [row["text"] for row in sampled if row["text"]]
    keepers = {row["key"]: row for table in view.rows_of(keys, names) for row in table.to_pylist()} if keys else {}
    return Gathered(leaves.rows(), texts, keepers)


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
    captions.add(pa.table({"text": scope.naming_texts(table)}), groups, order)
    if level == 1:
        if "centroid_distance" in table.column_names:
            distance = pc.fill_null(table.column("centroid_distance").cast(pa.float64()), np.inf)
            leaves.add(table, groups, np.nan_to_num(distance.to_numpy(), nan=np.inf))
        else:
            leaves.add(table, groups, order)


def fill(root: ShownCluster, found: Gathered, survey: Survey, profile: ProfileTable | None = None) -> None:
    """Give every node its name and profile, and every leaf its rows."""
    names = _names(found.captions, survey.texts)
    for node in root.nodes():
        node.facts = profile.of(node.level, node.id) if profile else None
        node.name = (node.facts.name if node.facts else "") or names.get((node.level, node.id), "")
        if node.level == 1:
            node.rows = found.leaf_rows.get(node.id, [])


def _names(captions: Mapping[tuple[int, int], Sequence[str]], background: Sequence[str]) -> dict[tuple[int, int], str]:
    """Name of each (level, cluster) by its captions, compared with those of its level and of the pool."""
    found: dict[tuple[int, int], str] = {}
    for level in {level for level, _ in captions}:
        groups = [(place, texts) for place, texts in captions.items() if place[0] == level]
        cluster = np.repeat(np.arange(-1, len(groups)), [len(background), *(len(texts) for _, texts in groups)])
        terms = Terms.of([*background, *(text for _, texts in groups for text in texts)])
        found |= zip((place for place, _ in groups), cluster_names(terms, cluster, len(groups)), strict=True)
    return found


def fanouts(levels: int, top: int, leaves: int) -> list[int]:
    """Children to show per node, coarsest level first: `top`, then equal steps down to about `leaves` in total."""
    if levels <= 1:
        return [leaves]
    step = max(2, round((leaves / top) ** (1 / (levels - 1))))
    return [top] + [step] * (levels - 1)


def largest_and_tail(sizes: NDArray[np.int64], ranks: NDArray[np.uint64], count: int) -> tuple[list[int], list[int]]:
    """Indices of the groups to show of `sizes` (n,): the largest, and about a quarter of `count` drawn from the rest by
    lowest rank (n,), both largest first. All if n <= count."""
    order = np.argsort(-sizes, kind="stable")
    if len(order) <= count:
        return order.tolist(), []
    tail = count // 4
    rest = order[count - tail :]
    drawn = np.sort(np.argsort(ranks[rest], kind="stable")[:tail])
    return order[: count - tail].tolist(), rest[drawn].tolist()
