"""Hierarchical balanced sampling (Vo et al. 2024, section 3.4): how many rows each leaf cluster gives.

Top-down water-filling. A node with target T and children of sizes s_i finds the largest whole c with
sum(min(c, s_i)) <= T; each child gets min(c, s_i), and what remains goes as +1 to children above the cut, chosen by
hash. Children that run out give everything. All nodes of a level are filled at once, with array code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from curate.cluster.hierarchy import position_in_group
from curate.core.errors import TargetError
from curate.core.hashing import make_key, ranks

_NODE_KEY = make_key("curate.cluster.sampling", "node")


def leaf_quotas(
    rows: NDArray[np.int64],
    parents: Sequence[NDArray[np.int64]],
    target: int,
    multiplier: int = 1,
    seed: int = 0,
) -> NDArray[np.int64]:
    """rows (K_1,) per leaf, parents (K_t,) of levels 1 .. L - 1 -> copies (K_1,) per leaf that add up to `target`.

    Every row may be taken up to `multiplier` times; clusters may be empty. Raises TargetError, naming the maximum,
    where the rows cannot give the target.
    """
    sizes = [np.asarray(rows, dtype=np.int64) * multiplier]
    for parent, width in zip(parents, [*map(len, parents[1:]), 0], strict=False):
        sizes.append(np.bincount(parent, weights=sizes[-1], minlength=width).astype(np.int64))  # exact below 2**53
    most = int(sizes[-1].sum())
    if target > most:
        raise TargetError(
            f"target: {target} rows of a pool that can give at most {most} "
            f"({int(np.sum(rows))} rows, each up to {multiplier} times); lower `target` or raise `multiplier`"
        )
    quotas = np.array([target], dtype=np.int64)
    for level in range(len(sizes), 0, -1):
        parent = parents[level - 1] if level < len(sizes) else np.zeros(len(sizes[-1]), dtype=np.int64)
        order = ranks(seed, [_NODE_KEY], level, np.arange(len(parent)))
        quotas = fill(quotas, parent, sizes[level - 1], order)
    return quotas


def fill(
    targets: NDArray[np.int64], parent: NDArray[np.int64], sizes: NDArray[np.int64], order: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Share targets (P,) among children (C,): `parent` in 0 .. P - 1, `sizes`; `order` says who gets a remainder first.

    Requires 0 <= targets <= sum of the children's sizes.
    """
    cut, remainder = _cuts(targets, parent, sizes)
    quotas = np.minimum(sizes, cut[parent])
    above = np.flatnonzero(sizes > cut[parent])
    above = above[np.lexsort((order[above], parent[above]))]
    quotas[above] += position_in_group(parent[above]) < remainder[parent[above]]
    return quotas


def _cuts(
    targets: NDArray[np.int64], parent: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(cut, remainder) per parent (P,).

    Children ascending by size, j of n exhausted with total S_j: the level s_j is reached while S_j + (n - j) s_j <= T;
    then c = (T - S_j) // (n - j), and the division's rest remains. With all exhausted the cut is their largest size.
    """
    by_size = np.lexsort((sizes, parent))
    group, size = parent[by_size], sizes[by_size]
    children = np.bincount(parent, minlength=len(targets))
    first = np.cumsum(children) - children
    done = position_in_group(group) + 1
    running = np.concatenate([[0], np.cumsum(size)])
    total = running[1:] - running[first][group]
    reached = total + (children[group] - done) * size <= targets[group]
    exhausted = np.bincount(group, weights=reached, minlength=len(targets)).astype(np.int64)
    spent = np.zeros(len(targets), dtype=np.int64)
    some = exhausted > 0
    spent[some] = total[(first + exhausted - 1)[some]]
    left = children - exhausted
    share, rest = np.divmod(targets - spent, np.maximum(left, 1))
    return np.where(left > 0, share, np.iinfo(np.int64).max), np.where(left > 0, rest, 0)
