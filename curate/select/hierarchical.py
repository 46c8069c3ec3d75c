"""`select.hierarchical`: the most balanced sample of a pool that its tree of clusters allows."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, model_validator

from curate.core.contracts import Added, Table
from curate.core.hashing import key_words
from curate.kernels.embeddings import embedding_columns, read_embeddings
from curate.select.clusters import SelectClusters
from curate.select.cover import MOST_ROWS, NO_DIRECTION, SKETCH_DIMS, SKETCH_ROWS, cover, parts, sketches

SKETCH = "sketch"
COVER_ROWS = 1 << 16
"""Rows of a bucket whose lines have vectors."""


class SelectHierarchical(SelectClusters):
    """Sample evenly among clusters: distribute the target down the tree, evenly among siblings at each level, or a part
    of it (`even`). With `by`, sample among labels: no tree is needed.

    A cluster with fewer rows than its quota gives all of them. Rejects: not_sampled; with `by` also no_label.
    """

    op: ClassVar[str] = "select.hierarchical"

    strategy: Literal["random", "cover", "fast_cover"] = Field(
        "random",
        description="How to choose rows of a cluster: by hash(seed, key), or by a greedy cover: repeatedly the row, of "
        "24 random ones, that most raises the sum of all rows' similarity to their best row taken. A cover of more "
        "than 1,024 rows is made in parts, and a new row may change it. fast_cover: the same in parts of 256 rows, by "
        "128 random projections of each vector.",
    )
    even: Annotated[float, Added()] = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of the target that is distributed evenly among siblings; the rest is distributed in "
        "proportion to the rows left in each cluster. Below 1, a larger sample need not contain a smaller one.",
    )
    level: Annotated[int, Added()] = Field(
        1, ge=1, description="Level of the tree down to which the target is distributed; 1 are the leaves."
    )
    embedding: Annotated[str, Added()] = Field(
        "embedding", description="Column with the vectors for a cover; `<name>_norm` holds their norms."
    )
    unit_norm: Annotated[bool, Added()] = Field(
        True, description="Cover directions; false covers the vectors with their norms."
    )

    @model_validator(mode="after")
    def _one_level(self) -> Self:
        if self.by is not None and self.level > 1:
            raise ValueError(f"level: {self.level} with by: {self.by}; labels have no levels, leave it out")
        return self

    @model_validator(mode="after")
    def _directions(self) -> Self:
        if self.strategy == "fast_cover" and not self.unit_norm:
            raise ValueError("strategy: fast_cover covers directions only; leave unit_norm out, or give cover")
        return self

    def units_level(self) -> int:
        return self.level

    def even_share(self) -> float:
        return self.even

    def order_columns(self) -> tuple[str, ...]:
        return () if self.strategy == "random" else embedding_columns(self.embedding, self.unit_norm)

    def deal(self, table: Table) -> Table:
        lines = super().deal(table)
        if self.strategy != "fast_cover":
            return lines
        found = sketches(read_embeddings(self.op, lines, self.embedding, self.unit_norm))
        kind = pa.binary(SKETCH_DIMS)
        column = pa.FixedSizeBinaryArray.from_buffers(kind, len(found), [None, pa.py_buffer(found)])
        return lines.drop_columns([self.embedding]).append_column(SKETCH, column)

    def bucket_rows(self) -> int | None:
        return COVER_ROWS if self.strategy == "cover" else None

    def order(self, lines: Table, quotas: NDArray[np.int64]) -> NDArray[np.floating] | None:
        return None if self.strategy == "random" else self._cover(lines, quotas)

    def _cover(self, lines: Table, quotas: NDArray[np.int64]) -> NDArray[np.float64]:
        """0 for rows that cover their cluster, else NaN. If each row is taken, those that are taken once more."""
        found = np.full(lines.num_rows, np.nan)
        words = key_words(lines.column("key").to_pylist())
        units = lines.column("unit").to_numpy()
        most = SKETCH_ROWS if self.strategy == "fast_cover" else MOST_ROWS
        by_unit = np.argsort(units, kind="stable")
        for rows in np.split(by_unit, np.flatnonzero(np.diff(units[by_unit])) + 1):
            quota = int(quotas[units[rows[0]]] % len(rows)) if len(rows) else 0
            for part, share in parts(words[rows], quota, self.seed, most) if quota else ():
                if not share:  # the quota has fewer rows than there are parts
                    break
                some = rows[part]
                vectors = self._vectors(lines.take(pa.array(some)))
                found[some[cover(vectors, words[some], share, self.seed)]] = 0
        return found

    def _vectors(self, lines: Table) -> NDArray[np.float32]:
        if self.strategy == "cover":
            return read_embeddings(self.op, lines, self.embedding, self.unit_norm)
        data = lines.column(SKETCH).combine_chunks()
        held = np.frombuffer(data.buffers()[1], np.int8).reshape(-1, SKETCH_DIMS)[data.offset : data.offset + len(data)]
        return np.where(held[:, :1] == NO_DIRECTION, np.float32(np.nan), held.astype(np.float32))
