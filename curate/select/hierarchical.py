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
from curate.select.cover import cover, parts

COVER_ROWS = 1 << 16
"""Rows of a bucket whose lines have vectors."""


class SelectHierarchical(SelectClusters):
    """Sample evenly among clusters: distribute the target down the tree, evenly among siblings at each level, or a part
    of it (`even`). With `by`, sample among labels: no tree is needed.

    A cluster with fewer rows than its quota gives all of them. Rejects: not_sampled; with `by` also no_label.
    """

    op: ClassVar[str] = "select.hierarchical"

    strategy: Literal["random", "cover"] = Field(
        "random",
        description="How to choose rows of a cluster: by hash(seed, key), or by a greedy cover: repeatedly the row, of "
        "24 random ones, that most raises the sum of all rows' similarity to their best row taken. A cover of more "
        "than 1,024 rows is made in parts, and a new row may change it.",
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

    def units_level(self) -> int:
        return self.level

    def even_share(self) -> float:
        return self.even

    def order_columns(self) -> tuple[str, ...]:
        return embedding_columns(self.embedding, self.unit_norm) if self.strategy == "cover" else ()

    def bucket_rows(self) -> int | None:
        return COVER_ROWS if self.strategy == "cover" else None

    def order(self, lines: Table, quotas: NDArray[np.int64]) -> NDArray[np.floating] | None:
        return self._cover(lines, quotas) if self.strategy == "cover" else None

    def _cover(self, lines: Table, quotas: NDArray[np.int64]) -> NDArray[np.float64]:
        """0 for rows that cover their cluster, else NaN. If each row is taken, those that are taken once more."""
        found = np.full(lines.num_rows, np.nan)
        words = key_words(lines.column("key").to_pylist())
        units = lines.column("unit").to_numpy()
        by_unit = np.argsort(units, kind="stable")
        for rows in np.split(by_unit, np.flatnonzero(np.diff(units[by_unit])) + 1):
            quota = int(quotas[units[rows[0]]] % len(rows)) if len(rows) else 0
            for part, share in parts(words[rows], quota, self.seed) if quota else ():
                if not share:  # the quota has fewer rows than there are parts
                    break
                some = rows[part]
                vectors = read_embeddings(self.op, lines.take(pa.array(some)), self.embedding, self.unit_norm)
                found[some[cover(vectors, words[some], share, self.seed)]] = 0
        return found
