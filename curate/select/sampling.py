"""Hierarchical balanced sampling (Vo et al. 2024, section 3.4): how many rows each leaf cluster gives.

Top-down water-filling. A node with target T and children of sizes s_i finds the largest whole c with
sum(min(c, s_i)) <= T; each child gets min(c, s_i), and what remains goes as +1 to children above the cut, chosen by
hash. Children that run out give everything. All nodes of a level are filled at once, with array code: two sorts of
64-bit words, of which numpy sorts 20 million in a second or two; no argsort, which takes ten times as long.

Quotas are monotone in the target: with one row more a node either hands out one more +1, in the same order, or (when
every child above the cut has one) raises the cut to what those children have already; so no child's target falls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import TargetError
from curate.core.hashing import make_key, ranks

_NODE_KEY = make_key("curate.cluster.sampling", "node")  # a salt: it stays, whatever the file is called
_WORD = 64


def leaf_quotas(
    rows: NDArray[np.int64],
    parents: Sequence[NDArray[np.integer]],
    target: int,
    multiplier: int = 1,
    seed: int = 0,
) -> NDArray[np.int64]:
    """rows (K_1,) per leaf, parents (K_t,) of levels 1 .. L - 1 -> copies (K_1,) per leaf that add up to `target`.

    Every row may be taken up to `multiplier` times; clusters may be empty. Raises TargetError, naming the maximum,
    where the rows cannot give the target.
    """
    return level_quotas(rows, parents, target, multiplier, seed)[0]


def level_quotas(
    rows: NDArray[np.int64],
    parents: Sequence[NDArray[np.integer]],
    target: int,
    multiplier: int = 1,
    seed: int = 0,
) -> list[NDArray[np.int64]]:
    """As `leaf_quotas`, for every level: [(K_1,), .. (K_L,)], each adding up to `target`."""
    rows = np.asarray(rows, dtype=np.int64)
    most = int(rows.sum()) * multiplier
    if target > most:
        raise TargetError(
            f"target: {target} rows of a pool that can give at most {most} "
            f"({int(rows.sum())} rows, each up to {multiplier} times); lower `target` or raise `multiplier`"
        )
    # nobody is asked for more than the target: whatever the multiplier, the numbers stay small
    able = np.minimum(rows, target // multiplier + 1) * multiplier
    sizes = [np.minimum(able, target, out=able) for able in level_rows(able, parents)]
    quotas = [np.array([target], dtype=np.int64)]
    for level in range(len(sizes), 0, -1):
        parent = parents[level - 1] if level < len(sizes) else np.zeros(len(sizes[-1]), dtype=np.int64)
        quotas.insert(0, fill(quotas[0], parent, sizes[level - 1], seed, level))
    return quotas[:-1]


def level_rows(rows: NDArray[np.int64], parents: Sequence[NDArray[np.integer]]) -> list[NDArray[np.int64]]:
    """rows (K_1,) per leaf -> rows under each cluster of every level, finest first; exact below 2**53 rows."""
    sizes = [rows]
    for parent, width in zip(parents, [*map(len, parents[1:]), 0], strict=False):
        sizes.append(np.bincount(parent, weights=sizes[-1], minlength=width).astype(np.int64))
    return sizes


def fill(
    targets: NDArray[np.int64], parent: NDArray[np.integer], sizes: NDArray[np.int64], seed: int = 0, level: int = 0
) -> NDArray[np.int64]:
    """Share targets (P,) among children (C,): `parent` in 0 .. P - 1, `sizes`; hash(seed, level, child) says who gets
    a remainder first.

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

    Children ascending by size, j of n exhausted with total S_j: the level s_j is reached while S_j + (n - j) s_j <= T;
    then c = (T - S_j) // (n - j), and the division's rest remains. With all exhausted the cut is their largest size.
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
    exhausted = exhausted[last] - exhausted[last - children]  # those reached are the smallest of their parent
    left = children - exhausted
    share, rest = np.divmod(targets - (running[last - left] - before), np.maximum(left, 1))
    return np.where(left > 0, share, np.iinfo(np.int64).max), np.where(left > 0, rest, 0)


def _first(parent: NDArray[np.integer], order: NDArray[np.uint64], number: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(C,): whether a child is among the `number` (P,) of its parent's that come first by `order`, then by index.

    The parent takes the upper bits of a word and so the lowest bits of `order` away; where that leaves a tie at the
    border, which hardly ever happens, that parent's children are sorted in full.
    """
    order_bits = _WORD - len(number).bit_length()
    words = _words(parent, order >> np.uint64(_WORD - order_bits), order_bits)
    ranked = np.sort(words)
    children = np.bincount(parent, minlength=len(number))
    taken = np.minimum(number, children)
    some = np.flatnonzero(taken)
    border = np.zeros(len(number), dtype=np.uint64)  # above every word of the parent's that is taken
    place = (np.cumsum(children) - children + taken)[some]
    border[some] = ranked[place - 1]
    chosen = (taken[parent] > 0) & (words <= border[parent])
    unsure = np.bincount(parent[chosen], minlength=len(number)) > taken
    again = np.flatnonzero(unsure[parent])
    if len(again):
        again = again[np.lexsort((order[again], parent[again]))]
        count = np.where(unsure, children, 0)
        chosen[again] = np.arange(len(again)) - (np.cumsum(count) - count)[parent[again]] < taken[parent[again]]
    return chosen


def _words(parent: NDArray[np.integer], low: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    """Words whose order is that of (parent, low); `low` below 2**bits."""
    words = parent.astype(np.uint64)
    words <<= np.uint64(bits)
    words |= low
    return words
