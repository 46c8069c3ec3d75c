"""How far the selection filled each level of the tree: quotas of clusters over what they could give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curate.core.view import View
from curate.kernels.tree import TreeShape
from curate.report.survey.profile import artifacts


@dataclass(frozen=True)
class Fill:
    """Fill rates of one level: the quota of each cluster over what it could give, its rows times the multiplier."""

    level: int
    clusters: int
    """Non-empty clusters."""
    empty: int
    quota: int
    least: float
    median: float
    exhausted: int
    """Clusters that gave all they could."""
    exhausted_quota: int
    """Sum of their quotas."""


@dataclass(frozen=True)
class TreeQuotas:
    """Rows and quota of each cluster (K,) of the level down to which the selection distributed its target."""

    level: int
    shape: TreeShape
    """From this level upwards."""
    count: NDArray[np.int64]
    quota: NDArray[np.int64]
    multiplier: int


def quotas_of(view: View) -> TreeQuotas | None:
    """None without a selection over a tree."""
    table = view.quotas()
    if table is None or view.selected_by is None:
        return None
    select = view.stages[view.selected_by]
    tree = next((tree for name, tree in artifacts(view, "cluster_tree").items() if name in select.inputs), None)
    if tree is None:
        return None
    level = int(select.parameters.get("level", 1))
    shape = TreeShape.of(tree).above(level)
    count, quota = (table.column(name).to_numpy() for name in ("count", "quota"))
    if len(count) > shape.clusters[0]:
        return None
    return TreeQuotas(level, shape, count, quota, int(select.parameters.get("multiplier", 1)))


def fills(view: View) -> list[Fill]:
    """Coarsest level first; empty without a selection over a tree."""
    quotas = quotas_of(view)
    if quotas is None:
        return []
    shape, most = quotas.shape, quotas.count * quotas.multiplier
    levels = zip(shape.sums(most), shape.sums(quotas.quota), strict=True)
    return [fill(level, *sizes) for level, sizes in reversed(list(enumerate(levels, quotas.level)))]


def fill(level: int, most: NDArray[np.int64], quota: NDArray[np.int64]) -> Fill:
    """most (K,): what each cluster could give; quota (K,): how much it had to give."""
    held = most > 0
    rate = quota[held] / most[held]
    full = quota[held] >= most[held]
    return Fill(
        level=level,
        clusters=len(rate),
        empty=len(most) - len(rate),
        quota=int(quota.sum()),
        least=float(rate.min()) if len(rate) else 0.0,
        median=float(np.median(rate)) if len(rate) else 0.0,
        exhausted=int(full.sum()),
        exhausted_quota=int(quota[held][full].sum()),
    )
