"""Hierarchical balanced sampling (Vo et al. 2024, section 3.4): how many rows each leaf cluster gives.

Top-down water-filling. A node with target T and children of sizes s_i finds the largest integer c with
sum(min(c, s_i)) <= T. Each child gets min(c, s_i); the remainder goes as +1 to children above the cut, chosen by
hash. Children smaller than the cut give everything. Array code fills all nodes of a level at once: two sorts of 64-bit
words, of which numpy sorts 20 million in a second or two. An argsort would take ten times as long.

Quotas that are dealt evenly are monotone in the target: for one more row, a node either assigns one more +1, in the
same order, or (if every child above the cut has one) raises the cut to what those children already have. No child's
target decreases.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import TargetError
from curate.core.hashing import make_key, ranks

_NODE_KEY = make_key("curate.cluster.sampling", "node")  # a salt: keep it when the file is renamed
_WORD = 64


def leaf_quotas(
    rows: NDArray[np.int64],
    parents: Sequence[NDArray[np.integer]],
    target: int,
    multiplier: int = 1,
    seed: int = 0,
    even: float = 1.0,
) -> NDArray[np.int64]:
    """rows (K_1,) per leaf, parents (K_t,) of levels 1 .. L - 1 -> copies (K_1,) per leaf that add up to `target`.

    A row may be taken up to `multiplier` times; clusters may be empty. A share `even` of the target is distributed down
    the tree, the rest in proportion to what each leaf can still give (exact below 2**53 copies). Raises TargetError,
    which names the maximum, if the rows cannot give the target.
    """
    _check(rows, target, multiplier)
    evenly = round(even * target)
    quotas = level_quotas(rows, parents, evenly, multiplier, seed)[0]
    if evenly == target:
        return quotas
    return quotas + proportional(np.asarray(rows) * float(multiplier) - quotas, target - evenly, seed)


def level_quotas(
    rows: NDArray[np.int64],
    parents: Sequence[NDArray[np.integer]],
    target: int,
    multiplier: int = 1,
    seed: int = 0,
) -> list[NDArray[np.int64]]:
    """As `leaf_quotas` with all of the target, for every level: [(K_1,), .. (K_L,)], each adding up to `target`."""
    rows = np.asarray(rows, dtype=np.int64)
    _check(rows, target, multiplier)
    # no cluster's quota exceeds the target, so the numbers stay small for any multiplier
    able = np.minimum(rows, target // multiplier + 1) * multiplier
    sizes = [np.minimum(able, target, out=able) for able in level_rows(able, parents)]
    quotas = [np.array([target], dtype=np.int64)]
    for level in range(len(sizes), 0, -1):
        parent = parents[level - 1] if level < len(sizes) else np.zeros(len(sizes[-1]), dtype=np.int64)
        quotas.insert(0, fill(quotas[0], parent, sizes[level - 1], seed, level))
    return quotas[:-1]


def _check(rows: NDArray[np.int64], target: int, multiplier: int) -> None:
    most = int(rows.sum()) * multiplier
    if target > most:
        raise TargetError(
            f"target: {target} rows, but the pool can give at most {most} "
            f"({int(rows.sum())} rows, each up to {multiplier} times); lower `target` or `share`, or raise `multiplier`"
        )


def proportional(sizes: NDArray[np.floating], target: int, seed: int = 0) -> NDArray[np.int64]:
    """Distribute a target, at most the sum of sizes (K,), in proportion to them: (K,), none above its size. The largest
    remainders are rounded up; equal ones in the order of hash(seed, cluster)."""
    exact = sizes * (target / max(1.0, float(sizes.sum())))
    quotas = np.minimum(np.floor(exact), sizes).astype(np.int64)
    able = np.flatnonzero(quotas < sizes)
    order = np.lexsort((ranks(seed, [_NODE_KEY], 0, able), (quotas - exact)[able]))
    quotas[able[order[: target - int(quotas.sum())]]] += 1
    return quotas


def level_rows(rows: NDArray[np.int64], parents: Sequence[NDArray[np.integer]]) -> list[NDArray[np.int64]]:
    """rows (K_1,) per leaf -> rows under each cluster of every level, finest first; exact below 2**53 rows."""
    sizes = [rows]
    for parent, width in zip(parents, [*map(len, parents[1:]), 0], strict=False):
        sizes.append(np.bincount(parent, weights=sizes[-1], minlength=width).astype(np.int64))
    return sizes


def fill(
    targets: NDArray[np.int64], parent: NDArray[np.integer], sizes: NDArray[np.int64], seed: int = 0, level: int = 0
) -> NDArray[np.int64]:
    """Distribute targets (P,) among children (C,) with `parent` in 0 .. P - 1 and `sizes`; hash(seed, level, child)
    orders the children that get the remainder.

    Requires 0 <= targets <= sum of the children's sizes, and sizes below 2**64 / P.
    """
    cut, remainder = _cuts(targets, parent, sizes)
    limit = cut[parent]
    quotas = np.minimum(sizes, limit)
    above = np.flatnonzero((sizes > limit) & (remainder[parent] > 0))
    del limit
    order = ranks(seed, [_NODE_KEY], level, above)
    quotas[above[_first(parent[above], order, remainder)]] += 1
    return quotas


def _cuts(
    targets: NDArray[np.int64], parent: NDArray[np.integer], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(cut, remainder) per parent (P,).

    With children in ascending size, j of n of them exhausted with total S_j, the level s_j is reached while
    S_j + (n - j) s_j <= T. Then c = (T - S_j) // (n - j), with the division's remainder. If all are exhausted, there
    is no cut.
    """
    children = np.bincount(parent, minlength=len(targets))
    last = np.cumsum(children)
    size_bits = _WORD - len(targets).bit_length()
    words = np.sort(_words(parent, sizes.astype(np.uint64), size_bits))  # by parent, then by size
    size = (words & np.uint64((1 << size_bits) - 1)).astype(np.int64)
    del words
    group = np.repeat(np.arange(len(targets)), children)
    running = np.concatenate([[0], np.cumsum(size)])
    before = running[last - children]
    left = last[group] - np.arange(1, len(size) + 1)  # children after this one
    reached = running[1:] - before[group] + left * size <= targets[group]
    exhausted = np.concatenate([[0], np.cumsum(reached)])
    exhausted = exhausted[last] - exhausted[last - children]  # the reached children are the smallest of their parent
    left = children - exhausted
    share, rest = np.divmod(targets - (running[last - left] - before), np.maximum(left, 1))
    return np.where(left > 0, share, np.iinfo(np.int64).max), np.where(left > 0, rest, 0)


def _first(parent: NDArray[np.integer], order: NDArray[np.uint64], number: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(C,): whether a child is among the first `number` (P,) of its parent's children by `order`, then by index.

    The parent takes the upper bits of a word, so that the lowest bits of `order` are lost. In the rare case of a tie
    at the border, that parent's children are sorted in full.
    """
    order_bits = _WORD - len(number).bit_length()
    words = _words(parent, order >> np.uint64(_WORD - order_bits), order_bits)
    ranked = np.sort(words)
    children = np.bincount(parent, minlength=len(number))
    taken = np.minimum(number, children)
    some = np.flatnonzero(taken)
    border = np.zeros(len(number), dtype=np.uint64)  # the largest word that the parent takes
    place = (np.cumsum(children) - children + taken)[some]
    border[some] = ranked[place - 1]
    chosen = (taken[parent] > 0) & (words <= border[parent])
    unsure = np.bincount(parent[chosen], minlength=len(number)) > taken
    tied = np.flatnonzero(unsure[parent])
    if len(tied):
        tied = tied[np.lexsort((order[tied], parent[tied]))]
        count = np.where(unsure, children, 0)
        chosen[tied] = np.arange(len(tied)) - (np.cumsum(count) - count)[parent[tied]] < taken[parent[tied]]
    return chosen


def _words(parent: NDArray[np.integer], low: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    """Words in the order of (parent, low), for `low` below 2**bits."""
    words = parent.astype(np.uint64)
    words <<= np.uint64(bits)
    words |= low
    return words
