"""Pure arithmetic behind the report: how uneven sizes are, curves of few points, the first rows of each group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def entropy_bits(sizes: NDArray[np.int64]) -> float:
    """Shannon entropy of the shares of `sizes` (K,), in bits: log2(K) when all are equal, 0 when one has it all."""
    counts = sizes[sizes > 0].astype(np.float64)
    if len(counts) < 2:
        return 0.0
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def gini(sizes: NDArray[np.int64]) -> float:
    """Gini coefficient of `sizes` (K,), empty ones included: 0 when all are equal, 1 - 1/K when one has it all."""
    values = np.sort(sizes.astype(np.float64))
    total = values.sum()
    if total <= 0:
        return 0.0
    weights = 2 * np.arange(1, len(values) + 1) - len(values) - 1
    return float(weights @ values / (len(values) * total))


@dataclass(frozen=True)
class Spread:
    """How a number of pictures is spread over clusters or labels."""

    groups: int
    """Groups that hold something."""
    empty: int
    total: int
    largest: int
    median: float
    """Of the groups that hold something."""
    entropy_bits: float
    effective: float
    """2 ** entropy: the number of equal groups that would be spread just as evenly."""
    gini: float


def spread(sizes: NDArray[np.int64]) -> Spread:
    """`sizes` (K,) of all groups that are compared, empty ones included."""
    held = sizes[sizes > 0]
    bits = entropy_bits(sizes)
    return Spread(
        groups=len(held),
        empty=len(sizes) - len(held),
        total=int(held.sum()),
        largest=int(held.max(initial=0)),
        median=float(np.median(held)) if len(held) else 0.0,
        entropy_bits=bits,
        effective=float(2**bits) if len(held) else 0.0,
        gini=gini(sizes),
    )


def rank_size(sizes: NDArray[np.int64], points: int = 120) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranks (1-based) and sizes of the non-empty groups, biggest first, thinned to about `points` ranks evenly spaced
    on a log axis; the first and the last are always among them."""
    ordered = np.sort(sizes[sizes > 0])[::-1]
    if len(ordered) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ranks = np.unique(np.round(np.geomspace(1, len(ordered), points)).astype(np.int64))
    return ranks, ordered[ranks - 1].astype(np.int64)


def first_per_group(groups: NDArray[np.int64], order: NDArray[np.generic], count: int) -> NDArray[np.int64]:
    """Indices of the `count` rows of smallest `order` in each group, by group then order; ties keep their order."""
    if len(groups) == 0:
        return np.empty(0, np.int64)
    index = np.lexsort((order, groups))
    ordered = groups[index]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    within = np.arange(len(ordered)) - np.repeat(starts, lengths)
    return index[within < count]


def add_at(
    totals: NDArray[np.int64], ids: NDArray[np.int64], amounts: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """`totals` (K,) with `amounts` (or 1 each) added at `ids` (n,) >= 0; grown, by doubling, to hold the largest id.
    Costs O(n), not O(K): K may be millions and n a shard."""
    if len(ids) == 0:
        return totals
    totals = grown(totals, int(ids.max()) + 1, 0)
    np.add.at(totals, ids, 1 if amounts is None else amounts)
    return totals


def grown(values: NDArray[np.int64], size: int, fill: int) -> NDArray[np.int64]:
    """`values`, or a copy of at least `size` elements, the new ones `fill`."""
    if size <= len(values):
        return values
    bigger = np.full(max(size, 2 * len(values)), fill, dtype=np.int64)
    bigger[: len(values)] = values
    return bigger


def fanouts(levels: int, top: int, leaves: int) -> list[int]:
    """How many children to show per node, coarsest level first: `top`, then even steps down to `leaves` in all."""
    if levels <= 1:
        return [leaves]
    step = max(2, round((leaves / top) ** (1 / (levels - 1))))
    return [top] + [step] * (levels - 1)


def biggest_and_tail(sizes: NDArray[np.int64], ranks: NDArray[np.uint64], count: int) -> tuple[list[int], list[int]]:
    """Indices of what to show of `sizes` (n,): the biggest first, and about a quarter of `count` drawn from the rest
    by smallest rank (n,), also biggest first. Everything when n <= count."""
    order = np.argsort(-sizes, kind="stable")
    if len(order) <= count:
        return order.tolist(), []
    tail = count // 4
    rest = order[count - tail :]
    drawn = np.sort(np.argsort(ranks[rest], kind="stable")[:tail])
    return order[: count - tail].tolist(), rest[drawn].tolist()
