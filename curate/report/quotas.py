"""How far the selection could fill each level of the tree: what was asked of clusters against what they could give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curate.core.view import View
from curate.kernels.tree import TreeShape
from curate.report.profile import artifacts


@dataclass(frozen=True)
class Fill:
    """One level. A cluster's fill rate is its quota over what it could give: its rows, times the multiplier."""

    level: int
    clusters: int
    """Those with something to give."""
    empty: int
    quota: int
    least: float
    median: float
    exhausted: int
    """Clusters that gave everything."""
    exhausted_quota: int
    """What these gave."""


@dataclass(frozen=True)
class Asked:
    """What the selection counted and asked of each leaf (K_1,) of its tree."""

    shape: TreeShape
    count: NDArray[np.int64]
    quota: NDArray[np.int64]
    multiplier: int


def asked_of(view: View) -> Asked | None:
    """None where no selection stands on a tree."""
    table = view.quotas()
    select = next((manifest for manifest in view.stages.values() if manifest.noun == "selection"), None)
    if table is None or select is None:
        return None
    tree = next((tree for name, tree in artifacts(view, "cluster_tree").items() if name in select.inputs), None)
    if tree is None:
        return None
    shape = TreeShape.of(tree)
    count, quota = (table.column(name).to_numpy() for name in ("count", "quota"))
    if len(count) > shape.clusters[0]:
        return None
    return Asked(shape, count, quota, int(select.parameters.get("multiplier", 1)))


def fills(view: View) -> list[Fill]:
    """Coarsest level first; nothing where no selection stands on a tree."""
    asked = asked_of(view)
    if asked is None:
        return []
    shape, most = asked.shape, asked.count * asked.multiplier
    levels = zip(shape.sums(most), shape.sums(asked.quota), strict=True)
    return [fill(level, *sizes) for level, sizes in reversed(list(enumerate(levels, 1)))]


def fill(level: int, most: NDArray[np.int64], quota: NDArray[np.int64]) -> Fill:
    """most (K,): what each cluster could give; quota (K,): what was asked of it."""
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
