"""A bounded sample of the rows that reached the selection, from which it is compared with a random sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.hashing import rank_below, ranks
from curate.kernels.embeddings import read_embeddings
from curate.kernels.interval import expected_entropy
from curate.kernels.reservoir import Reservoir
from curate.report.survey.rows import LabelCounts, integers, texts
from curate.report.survey.scope import Scope
from curate.report.verdict.compare import ENTROPY, SMALL, Comparison, compare

MOST = 5000
"""Most samples of each side, and most test rows: memory and time do not grow beyond it."""
TENTH = 0.1
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
        sets = pc.coalesce(keepers, table.column("key")).to_pylist()
        rank, hold = ranks(self.seed, keys, SALTS[0]), ranks(self.seed, sets, SALTS[1])
        labels = self.scope.labels(table)
        vectors = table.column(embedding) if embedding else pa.nulls(len(keys))
        vectors = vectors if pa.types.is_fixed_size_binary(vectors.type) else pa.nulls(len(keys), pa.binary(2))
        selected = np.flatnonzero(copies > 0)
        tests = np.flatnonzero(rank_below(hold, TENTH) & pc.is_null(keepers).to_numpy(zero_copy_only=False))
        index = np.r_[np.arange(len(keys)), selected, tests]
        groups = np.repeat(np.arange(3), [len(keys), len(selected), len(tests)])
        rows = pa.table({"rank": rank, "hold": hold, "copies": copies, "label": labels, "vector": vectors})
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
        found = compare(
            np.where(np.cumsum(copies) <= MOST, copies, 0),  # of a larger selection, the samples of lowest rank
            pc.fill_null(label, -1).to_numpy().astype(np.int64),
            labels.counts()[0],
            read_embeddings("report.html", rows, "vector", unit_norm=True),
            rank_below(rows.column("hold").to_numpy(), TENTH),
            np.bincount(place[groups == 2], minlength=len(first)) > 0,
        )
        if found is None or self.scope.rates is None:
            return found
        label = np.unique(self._labelled, return_inverse=True)[1] if self._labelled else np.zeros(0, np.int64)
        one = expected_entropy(label, np.concatenate(self._rates))
        figures = {name: figure for name, figure in found.figures.items() if name not in (ENTROPY, SMALL)}
        figures = figures if one is None else {ENTROPY: one} | figures
        return replace(found, figures=figures, estimated_from=len(label))
