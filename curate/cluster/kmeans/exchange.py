"""Exchange: move single rows to another cluster if this lowers the inertia, and update both centroids.

Moving a row x from cluster a (n_a rows) to cluster b lowers the inertia if
    n_a / (n_a - 1) |x - c_a|^2  >  n_b / (n_b + 1) |x - c_b|^2   (Hartigan 1975; Telgarsky & Vattani 2010, 2).
On the sphere, a cluster whose rows sum to S has inertia 2 (n - |S|), and the condition is
    |S_b + x| - |S_b|  >  |S_a| - |S_a - x|.
Moving one row at a time would take n dependent steps per pass. This module instead visits rows in batches of about half
as many rows as there are clusters. It applies the moves that share no cluster with a better move, and evaluates the
others again with the new centroids, a few times. Rows have a fixed order, so the result is unique.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.cluster.kmeans.assigned import Subset, assigned, cluster_sums, count_rows, means_of, memoized, vectors
from curate.core.group import Group, Part
from curate.kernels.nearest.search import each_block

BATCH_PER_CLUSTER = 0.5
MIN_BATCH = 256
BLOCK_ROWS = 256
"""Rows per thread whose distances to all centroids are in memory at once."""
EVALUATIONS = 4
"""Times that the moves of a batch are evaluated."""
MIN_GAIN = 1e-4
"""Fraction of a row's own cost that a move must gain; larger than the rounding error of float32."""


def exchange_pass(
    group: Group, unit_norm: bool, subset: Subset, centroids: NDArray[np.float32], moves: NDArray[np.int64]
) -> tuple[NDArray[np.int64], float]:
    """Run one pass over all rows; return all moves since the assignment to `centroids`, and the inertia.

    centroids: (K, d); moves: (m, 3), made since the assignment.
    """
    rows = sum(group.each(count_rows, subset=subset))
    slices = -(-rows // max(MIN_BATCH, int(BATCH_PER_CLUSTER * len(centroids))))
    total, counts, squares = current_sums(group, subset, centroids, moves)
    table = ClusterSums(total, counts, centroids, unit_norm)
    for number in range(slices):
        found = list(
            group.each(
                propose, subset=subset, before=centroids, moves=moves, centroids=table.centroids, lengths=table.lengths,
                counts=table.counts, unit_norm=table.unit_norm, slice=number, slices=slices,
            )
        )  # fmt: skip
        part = np.repeat(np.arange(len(found)), [len(rows) for rows, *_ in found])
        row, source, target, x = (np.concatenate(piece) for piece in zip(*found, strict=True))
        done = table.move(source, target, x)
        moves = np.concatenate([moves, np.stack([part[done], row[done], target[done]], axis=1)])
    return _latest(moves), table.inertia(squares)


def _latest(moves: NDArray[np.int64]) -> NDArray[np.int64]:
    """Last move of each row, in order of part and row."""
    order = np.lexsort((np.arange(len(moves)), moves[:, 1], moves[:, 0]))
    ordered = moves[order]
    last = np.r_[np.any(ordered[1:, :2] != ordered[:-1, :2], axis=1), True][: len(ordered)]
    return ordered[last]


def current_sums(
    group: Group, subset: Subset, centroids: NDArray[np.float32], moves: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], float]:
    """Sums (K, d) and counts (K,) of the clusters after `moves`, and the sum of the squared lengths of all rows."""
    total, counts, squares = np.zeros(centroids.shape), np.zeros(len(centroids), np.int64), 0.0
    for part_total, part_counts, part_squares in group.each(sums_moved, subset=subset, before=centroids, moves=moves):
        total += part_total
        counts += part_counts
        squares += part_squares
    return total, counts, squares


def sums_moved(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.int64], float]:
    """Return `current_sums` of one part."""
    x, ids = vectors(part, shared), _ids(part, shared)
    clusters = len(shared["before"])

    def squares() -> float:
        blocks = each_block(lambda at: _squares(x[at : at + BLOCK_ROWS]), len(x), part.threads, BLOCK_ROWS)
        return float(sum(blocks))

    subset: Subset = shared["subset"]
    total = cluster_sums(x, ids, clusters)
    return (
        total,
        np.bincount(ids, minlength=clusters),
        memoized(part, "squares", subset.token if subset else "", squares),
    )


def _squares(block: NDArray[np.float32]) -> float:
    wide = block.astype(np.float64)
    return float(np.einsum("nd,nd->", wide, wide))


def propose(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[Any], ...]:
    """Propose moves for every `slices`-th row: (row, source, target, vector) if the move gains in float32."""
    x = vectors(part, shared)
    ids = _ids(part, shared)
    rows = np.arange(shared["slice"], len(x), shared["slices"])
    centroids, lengths, counts = shared["centroids"], shared["lengths"], shared["counts"]
    # cost of joining per squared distance: 1 - 1 / (n + 1); rows never join an empty cluster
    join = np.where(counts > 0, counts / (counts + 1.0), np.inf).astype(np.float32)

    def one(start: int) -> tuple[NDArray[Any], ...]:
        import faiss

        mine = rows[start : start + BLOCK_ROWS]
        block = np.ascontiguousarray(x[mine])
        source = ids[mine]
        cost = faiss.pairwise_distances(block, centroids)
        place = np.arange(len(block))
        own = cost[place, source]
        if shared["unit_norm"]:
            cost = -_joining_gain(1 - cost / 2, lengths)
            cost[:, counts == 0] = np.inf
            stay = -_leaving_loss(1 - own / 2, lengths[source])
        else:
            cost *= join
            size = counts[source]
            stay = np.where(size > 1, own * (size / np.maximum(size - 1, 1)), 0)
        cost[place, source] = np.inf
        target = cost.argmin(axis=1)
        gains = np.flatnonzero(stay - cost[place, target] > MIN_GAIN * own)
        return mine[gains], source[gains], target[gains], block[gains]

    found = each_block(one, len(rows), part.threads, BLOCK_ROWS)
    if not found:
        none = np.empty(0, np.int64)
        return none, none, none, np.empty((0, x.shape[1]), np.float32)
    return tuple(np.concatenate(piece) for piece in zip(*found, strict=True))


def _ids(part: Part, shared: Mapping[str, Any]) -> NDArray[np.int64]:
    """Current cluster of each row: the assignment to `before`, then the moves."""
    subset: Subset = shared.get("subset")
    moves = shared["moves"]
    ids = assigned(part, {"centroids": shared["before"], "subset": subset})[0].copy()
    mine = moves[moves[:, 0] == part.index]
    ids[mine[:, 1]] = mine[:, 2]  # the last move of a row wins
    return ids


def squared(difference: NDArray[np.float32]) -> NDArray[np.float32]:
    """Squared length (m,) of rows (m, d)."""
    return np.einsum("md,md->m", difference, difference)


def _joining_gain(cosine: NDArray[Any], length: NDArray[Any]) -> NDArray[Any]:
    """|S + x| - |S| for a unit vector x with S x = |S| cosine, without cancellation."""
    twice = 2 * length * cosine + 1
    return twice / (np.sqrt(np.maximum(length * length + twice, 0)) + length)


def _leaving_loss(cosine: NDArray[Any], length: NDArray[Any]) -> NDArray[Any]:
    """|S| - |S - x|, without cancellation."""
    twice = 2 * length * cosine - 1
    return twice / (np.sqrt(np.maximum(length * length - twice, 0)) + length)


class ClusterSums:
    """Sums (K, d), counts (K,) and centroids (K, d) of the clusters, updated with every move."""

    def __init__(
        self, total: NDArray[np.float64], counts: NDArray[np.int64], before: NDArray[np.float32], unit_norm: bool
    ) -> None:
        self.total, self.counts, self.unit_norm = total, counts, unit_norm
        self.lengths = np.linalg.norm(total, axis=1).astype(np.float32)
        self.centroids = means_of(total, counts, before, unit_norm)

    def inertia(self, squares: float) -> float:
        """Inertia of the clusters; `squares` is the sum of the squared lengths of all rows."""
        length = np.linalg.norm(self.total, axis=1)
        if self.unit_norm:  # |x - c|^2 = |x|^2 - 2 x c + 1
            return max(0.0, squares - 2 * float(length.sum()) + int(self.counts.sum()))
        return max(0.0, squares - float((length**2 / np.maximum(self.counts, 1)).sum()))

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64], x: NDArray[np.float32]) -> NDArray[np.int64]:
        """Apply the proposed moves (m,) of rows x (m, d) that still lower the inertia; return their indices."""
        made = [np.empty(0, np.int64)]
        left = np.arange(len(source))
        for _ in range(EVALUATIONS):
            gain, cost = self._gain(source[left], target[left], x[left])
            left, gain = left[gain > MIN_GAIN * cost], gain[gain > MIN_GAIN * cost]
            if not len(left):
                break
            best = self._without_conflict(source[left], target[left], gain)
            self._apply(source[left[best]], target[left[best]], x[left[best]])
            made.append(left[best])
            left = np.delete(left, best)
        return np.concatenate(made)

    def _gain(
        self, source: NDArray[np.int64], target: NDArray[np.int64], x: NDArray[np.float32]
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Gain of each move on its own, and the squared distance of the row to its current centroid."""
        to_source, to_target = (squared(x - self.centroids[at]) for at in (source, target))
        if self.unit_norm:
            here, there = self.lengths[source], self.lengths[target]
            return _joining_gain(1 - to_target / 2, there) - _leaving_loss(1 - to_source / 2, here), to_source
        n, m = self.counts[source], self.counts[target]
        stay = np.where(n > 1, to_source * (n / np.maximum(n - 1, 1)), 0)
        return stay - to_target * (m / (m + 1)), to_source

    def _without_conflict(
        self, source: NDArray[np.int64], target: NDArray[np.int64], gain: NDArray[np.floating]
    ) -> NDArray[np.int64]:
        """Indices of the moves that gain most in both of their clusters; on equal gains the earlier row wins."""
        rank = np.empty(len(gain), np.int64)
        rank[np.argsort(-gain, kind="stable")] = np.arange(len(gain))
        best = np.full(len(self.counts), len(gain))
        np.minimum.at(best, source, rank)
        np.minimum.at(best, target, rank)
        return np.flatnonzero((best[source] == rank) & (best[target] == rank))

    def _apply(self, source: NDArray[np.int64], target: NDArray[np.int64], x: NDArray[np.float32]) -> None:
        """Apply moves, of which no two share a cluster."""
        self.total[source] -= x
        self.total[target] += x
        self.counts[source] -= 1
        self.counts[target] += 1
        changed = np.concatenate([source, target])
        length = np.linalg.norm(self.total[changed], axis=1)
        self.lengths[changed] = length
        scale = length if self.unit_norm else self.counts[changed]
        moved = self.total[changed] / np.where(scale > 0, scale, 1)[:, None]
        self.centroids[changed] = np.where(scale[:, None] > 0, moved, self.centroids[changed])
