"""Exchange: rows change their cluster one by one where that lowers the inertia, both centroids moving along.

A row x of cluster a (n_a rows) would lower the inertia by moving to b where
    n_a / (n_a - 1) |x - c_a|^2  >  n_b / (n_b + 1) |x - c_b|^2   (Hartigan 1975; Telgarsky & Vattani 2010, 2)
and on the sphere, where a cluster's inertia is 2 (n - |S|) for the sum S of its rows, where
    |S_b + x| - |S_b|  >  |S_a| - |S_a - x|.
One row at a time would be a pass of n dependent steps. Here rows are visited in batches of about half as many rows as
there are clusters. Moves that share no cluster with a better move are made; the others are evaluated again with the
new centroids, a few times. The order of rows is fixed by their place, so the result is unique.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.cluster.kmeans.assigned import Some, assigned, cluster_sums, count_rows, means_of, remembered, vectors
from curate.core.group import Group, Part
from curate.kernels.nearest.search import each_block

BATCH_PER_CLUSTER = 0.5
LEAST_BATCH = 256
BLOCK_ROWS = 256
"""Rows whose distances to all centroids are held at once, per thread."""
LOOKS = 4
"""Times that the moves of one batch are evaluated."""
LEAST_GAIN = 1e-4
"""Share of a row's own cost that a move must gain: more than float32 can be wrong by."""


def exchanged(
    group: Group, unit_norm: bool, kept: Some, centroids: NDArray[np.float32], moves: NDArray[np.int64]
) -> tuple[NDArray[np.int64], float]:
    """One pass over all rows, assigned to `centroids` (K, d) with `moves` (m, 3) since -> moves, and the inertia."""
    rows = sum(group.each(count_rows, kept=kept))
    slices = -(-rows // max(LEAST_BATCH, int(BATCH_PER_CLUSTER * len(centroids))))
    total, counts, squares = sums_now(group, kept, centroids, moves)
    table = Clusters(total, counts, centroids, unit_norm)
    for number in range(slices):
        found = list(
            group.each(
                propose, kept=kept, before=centroids, moves=moves, centroids=table.centroids, lengths=table.lengths,
                counts=table.counts, unit_norm=table.unit_norm, slice=number, slices=slices,
            )
        )  # fmt: skip
        part = np.repeat(np.arange(len(found)), [len(rows) for rows, *_ in found])
        row, source, target, x = (np.concatenate(piece) for piece in zip(*found, strict=True))
        done = table.move(source, target, x)
        moves = np.concatenate([moves, np.stack([part[done], row[done], target[done]], axis=1)])
    return _latest(moves), table.inertia(squares)


def _latest(moves: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last move of each row, in order of part and row."""
    order = np.lexsort((np.arange(len(moves)), moves[:, 1], moves[:, 0]))
    ordered = moves[order]
    last = np.r_[np.any(ordered[1:, :2] != ordered[:-1, :2], axis=1), True][: len(ordered)]
    return ordered[last]


def sums_now(
    group: Group, kept: Some, centroids: NDArray[np.float32], moves: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], float]:
    """Sums (K, d), counts (K,), and the sum of all rows' squares, of rows assigned to `centroids` and then moved."""
    total, counts, squares = np.zeros(centroids.shape), np.zeros(len(centroids), np.int64), 0.0
    for part_total, part_counts, part_squares in group.each(sums_moved, kept=kept, before=centroids, moves=moves):
        total += part_total
        counts += part_counts
        squares += part_squares
    return total, counts, squares


def sums_moved(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.int64], float]:
    x, ids = vectors(part, shared), _ids(part, shared)
    clusters = len(shared["before"])

    def squares() -> float:
        blocks = each_block(lambda at: _squares(x[at : at + BLOCK_ROWS]), len(x), part.threads, BLOCK_ROWS)
        return float(sum(blocks))

    kept: Some = shared["kept"]
    total = cluster_sums(x, ids, clusters)
    return total, np.bincount(ids, minlength=clusters), remembered(part, "squares", kept.token if kept else "", squares)


def _squares(block: NDArray[np.float32]) -> float:
    wide = block.astype(np.float64)
    return float(np.einsum("nd,nd->", wide, wide))


def propose(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[Any], ...]:
    """Every `slices`-th row that would gain by a move: (row, from, to, vector), in float32."""
    x = vectors(part, shared)
    ids = _ids(part, shared)
    rows = np.arange(shared["slice"], len(x), shared["slices"])
    centroids, lengths, counts = shared["centroids"], shared["lengths"], shared["counts"]
    # what joining costs, per squared distance: 1 - 1 / (n + 1); a cluster without rows is not joined
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
            cost = -_joined(1 - cost / 2, lengths)
            cost[:, counts == 0] = np.inf
            stay = -_left(1 - own / 2, lengths[source])
        else:
            cost *= join
            size = counts[source]
            stay = np.where(size > 1, own * (size / np.maximum(size - 1, 1)), 0)
        cost[place, source] = np.inf
        target = cost.argmin(axis=1)
        gains = np.flatnonzero(stay - cost[place, target] > LEAST_GAIN * own)
        return mine[gains], source[gains], target[gains], block[gains]

    found = each_block(one, len(rows), part.threads, BLOCK_ROWS)
    if not found:
        none = np.empty(0, np.int64)
        return none, none, none, np.empty((0, x.shape[1]), np.float32)
    return tuple(np.concatenate(piece) for piece in zip(*found, strict=True))


def _ids(part: Part, shared: Mapping[str, Any]) -> NDArray[np.int64]:
    """Cluster of each row now: as assigned to `before`, with the moves since."""
    kept: Some = shared.get("kept")
    moves = shared["moves"]
    ids = assigned(part, {"centroids": shared["before"], "kept": kept})[0].copy()
    mine = moves[moves[:, 0] == part.index]
    ids[mine[:, 1]] = mine[:, 2]  # of several moves of a row the last one counts
    return ids


def squared(difference: NDArray[np.float32]) -> NDArray[np.float32]:
    """Squared length (m,) of rows (m, d)."""
    return np.einsum("md,md->m", difference, difference)


def _joined(cosine: NDArray[Any], length: NDArray[Any]) -> NDArray[Any]:
    """|S + x| - |S| for unit x with S x = |S| cosine, without cancellation."""
    twice = 2 * length * cosine + 1
    return twice / (np.sqrt(np.maximum(length * length + twice, 0)) + length)


def _left(cosine: NDArray[Any], length: NDArray[Any]) -> NDArray[Any]:
    """|S| - |S - x|."""
    twice = 2 * length * cosine - 1
    return twice / (np.sqrt(np.maximum(length * length - twice, 0)) + length)


class Clusters:
    """Sums (K, d), counts (K,) and centroids (K, d) of clusters whose rows move."""

    def __init__(
        self, total: NDArray[np.float64], counts: NDArray[np.int64], before: NDArray[np.float32], unit_norm: bool
    ) -> None:
        self.total, self.counts, self.unit_norm = total, counts, unit_norm
        self.lengths = np.linalg.norm(total, axis=1).astype(np.float32)
        self.centroids = means_of(total, counts, before, unit_norm)

    def inertia(self, squares: float) -> float:
        """Inertia of the rows; `squares` is the sum of all rows' squares."""
        length = np.linalg.norm(self.total, axis=1)
        if self.unit_norm:  # |x - c|^2 = |x|^2 - 2 x c + 1
            return max(0.0, squares - 2 * float(length.sum()) + int(self.counts.sum()))
        return max(0.0, squares - float((length**2 / np.maximum(self.counts, 1)).sum()))

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64], x: NDArray[np.float32]) -> NDArray[np.int64]:
        """Make what of the proposed moves (m,) still gains; rows x (m, d). Returns the indices of those made."""
        made = [np.empty(0, np.int64)]
        left = np.arange(len(source))
        for _ in range(LOOKS):
            gain, cost = self._gain(source[left], target[left], x[left])
            left, gain = left[gain > LEAST_GAIN * cost], gain[gain > LEAST_GAIN * cost]
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
        """What each move alone would gain, and the row's distance to its centroid now."""
        from_here, to_there = (squared(x - self.centroids[at]) for at in (source, target))
        if self.unit_norm:
            here, there = self.lengths[source], self.lengths[target]
            return _joined(1 - to_there / 2, there) - _left(1 - from_here / 2, here), from_here
        n, m = self.counts[source], self.counts[target]
        stay = np.where(n > 1, from_here * (n / np.maximum(n - 1, 1)), 0)
        return stay - to_there * (m / (m + 1)), from_here

    def _without_conflict(
        self, source: NDArray[np.int64], target: NDArray[np.int64], gain: NDArray[np.floating]
    ) -> NDArray[np.int64]:
        """Indices of the moves that are the best of both their clusters; equal gains go to the earlier row."""
        rank = np.empty(len(gain), np.int64)
        rank[np.argsort(-gain, kind="stable")] = np.arange(len(gain))
        best = np.full(len(self.counts), len(gain))
        np.minimum.at(best, source, rank)
        np.minimum.at(best, target, rank)
        return np.flatnonzero((best[source] == rank) & (best[target] == rank))

    def _apply(self, source: NDArray[np.int64], target: NDArray[np.int64], x: NDArray[np.float32]) -> None:
        """No cluster takes part in two of the moves."""
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
