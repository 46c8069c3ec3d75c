"""A bounded sample of the rows that reached the selection, from which it is compared with a random sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.hashing import rank_below, ranks
from curate.kernels.embeddings import read_embeddings
from curate.kernels.interval import LEAST, expected_entropy
from curate.kernels.neighbours import near_copies
from curate.kernels.reservoir import Reservoir
from curate.report.survey.rows import LabelCounts, integers, texts
from curate.report.survey.scope import Scope
from curate.report.verdict.compare import ENTROPY, SMALL, Comparison, compare

MOST = 5000
"""Most samples of each side, and most test rows: memory and time do not grow beyond it."""
TENTH = 0.1
LARGE = 0.02
"""Share of all rows above which a cluster of near copies is not held out."""
SALTS = (0xA6, 0xA7)
"""Make the random sample and the test rows independent of each other and of what selections draw with this seed."""


class Contenders:
    """Collects rows shard by shard: those of lowest rank of the pool and of the selection, and test rows."""

    def __init__(self, scope: Scope, seed: int) -> None:
        self.scope, self.seed = scope, seed
        self._rows = Reservoir(MOST)
        self._labelled: list[str] = []
        self._rates: list[NDArray[np.float64]] = [np.zeros(0)]
        """Labels of a file, and how often a row of its row's cluster is sampled."""

    def add(self, table: pa.Table, copies: NDArray[np.int64]) -> None:
        """Rows that reached the selection, and their copies (n,)."""
        keys, embedding = table.column("key").to_pylist(), self.scope.embedding
        keepers = texts(table, "duplicate_of")  # a set of copies is held out as a whole, and its keeper tested
        copy = pc.is_valid(keepers)
        sets = pc.coalesce(keepers, table.column("key")).to_pylist()
        rank, hold = ranks(self.seed, keys, SALTS[0]), ranks(self.seed, sets, SALTS[1])
        labels = self.scope.labels(table)
        vectors = table.column(embedding) if embedding else pa.nulls(len(keys))
        vectors = vectors if pa.types.is_fixed_size_binary(vectors.type) else pa.nulls(len(keys), pa.binary(2))
        selected = np.flatnonzero(copies > 0)
        tests = np.flatnonzero(rank_below(hold, TENTH))
        index = np.r_[np.arange(len(keys)), selected, tests]
        groups = np.repeat(np.arange(3), [len(keys), len(selected), len(tests)])
        rows = pa.table(
            {"rank": rank, "hold": hold, "copy": copy, "copies": copies, "label": labels, "vector": vectors}
        )
        if self.scope.rates is not None:
            level, rate = self.scope.rates
            unit = integers(table, f"cluster_{level}", -1)
            inside = (unit >= 0) & (unit < len(rate)) & pc.is_valid(labels).to_numpy(zero_copy_only=False)
            self._labelled += labels.filter(pa.array(inside)).to_pylist()
            self._rates.append(rate[unit[inside]])
        self._rows.add(rows.take(index), groups, np.r_[rank, rank[selected], hold[tests]])

    def compare(self, labels: LabelCounts) -> Comparison | None:
        """None if there is nothing to compare. `labels`: of all rows that were added."""
        table, groups = self._rows.table()
        if table is None:
            return None
        _, first, place = np.unique(table.column("rank").to_numpy(), return_index=True, return_inverse=True)
        rows, copies = table.take(first), table.column("copies").to_numpy()[first]
        label = pc.index_in(rows.column("label"), pa.array(labels.names, pa.string()), skip_nulls=True)
        vectors = read_embeddings("report.html", rows, "vector", unit_norm=True)
        group, held_out = _held_out(vectors, rows.column("hold").to_numpy())
        drawn = np.bincount(place[groups != 1], minlength=len(first)) > 0  # regardless of what was selected
        found = compare(
            np.where(np.cumsum(copies) <= MOST, copies, 0),  # of a larger selection, the samples of lowest rank
            pc.fill_null(label, -1).to_numpy().astype(np.int64),
            labels.counts()[0],
            vectors,
            held_out,
            held_out & drawn & ~rows.column("copy").to_numpy(),
            group,
        )
        if found is None or self.scope.rates is None:
            return found
        label = np.unique(self._labelled, return_inverse=True)[1] if self._labelled else np.zeros(0, np.int64)
        one = expected_entropy(label, np.concatenate(self._rates))
        figures = {name: figure for name, figure in found.figures.items() if name not in (ENTROPY, SMALL)}
        figures = figures if one is None else {ENTROPY: one} | figures
        return replace(found, figures=figures, estimated_from=len(label))


def _held_out(vectors: NDArray[np.float32], hold: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The cluster of near copies (n,) of each row, and which rows to hold out (n,): a tenth of the clusters, as the
    first row of each says. A single large cluster would decide alone, so it is never held out."""
    group = near_copies(vectors, np.unique(hold, return_inverse=True)[1])
    _, first, sizes = np.unique(group, return_index=True, return_counts=True)
    chosen = rank_below(hold[first], TENTH) & (sizes <= max(LEAST, LARGE * len(hold)))
    return group, chosen[group]
