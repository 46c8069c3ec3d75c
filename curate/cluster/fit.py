"""`cluster.fit`: a tree of centroids from the embeddings of a pool."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from curate.cluster.embeddings import embedding_columns, finite_rows, read_embeddings
from curate.cluster.hierarchy import fit_tree
from curate.core.errors import CurateError, InputError
from curate.core.hashing import rank_below, ranks
from curate.core.stage import Artifact, Execution, Reduce, Resources, Table

_SAMPLE_SALT = 0xC1
"""Keeps the rows fitted on independent of the rows that `select.*` takes under the same seed."""


class Fit(Reduce):
    """Hierarchical k-means with resampling: level 1 clusters the embeddings, each further level the centroids below.

    The artifact holds `centroids_1` .. `centroids_L` (K_t, d), `parents_1` .. `parents_{L-1}` (K_t,) naming clusters
    one level up, and `levels`: the settings that `cluster.assign` must share, and per level its clusters, inertia,
    iterations and how evenly rows are spread. It is the same for any order of shards and any number of threads.
    """

    op: ClassVar[str] = "cluster.fit"
    kind: ClassVar[str] = "cluster_tree"

    levels: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = Field(
        description="Clusters per level, finest first, strictly decreasing: [400, 60, 12]."
    )
    rounds: int = Field(10, ge=0, description="Resampling rounds per level after its first k-means.")
    resample: list[Annotated[int, Field(ge=1)] | None] | None = Field(
        None,
        description="Points nearest to each centroid that a round keeps, per level, finest first; "
        "null is half the mean cluster size, 1 is no resampling.",
    )
    iterations: int = Field(30, ge=1, description="Iterations of one k-means at most; it ends sooner when settled.")
    sample: float = Field(1.0, gt=0, le=1, description="Share of the rows to fit on, chosen by hash(seed, key).")
    embedding: str = Field("embedding", description="Column with the vectors; `<name>_norm` holds their norms.")
    unit_norm: bool = Field(
        True, description="Cluster directions, with centroids of unit length; false clusters vectors with their norms."
    )
    seed: int = Field(0, ge=0, description="Seed of the sample and of the starts of k-means.")
    threads: Annotated[int, Execution()] = Field(2, ge=1, description="Cores of the fit.")

    @model_validator(mode="after")
    def _levels_agree(self) -> Self:
        if any(below <= above for below, above in pairwise(self.levels)):
            raise ValueError(f"levels: {self.levels} must decrease strictly, finest first; as in [400, 60, 12]")
        if self.resample is not None and len(self.resample) != len(self.levels):
            raise ValueError(
                f"resample: {len(self.resample)} values for {len(self.levels)} levels; give one for each, finest first"
            )
        return self

    def scaled(self, fraction: float) -> Self:
        """Levels shrink with the pool; they stay as many, and decrease strictly down to 1 at the coarsest."""
        levels: list[int] = []
        for clusters in reversed(self.levels):
            levels.insert(0, max(levels[0] + 1 if levels else 1, min(clusters, int(clusters * fraction))))
        return self.model_copy(update={"levels": levels})

    def reads(self) -> tuple[str, ...]:
        return embedding_columns(self.embedding, self.unit_norm)

    def resources(self) -> Resources:
        return Resources(cpus=self.threads)

    def partial(self, table: Table) -> Table:
        """Key and embedding of the sampled rows. Raises InputError for vectors that cannot be clustered."""
        if self.sample < 1:
            rank = ranks(self.seed, table.column("key").to_pylist(), _SAMPLE_SALT)
            table = table.filter(pa.array(rank_below(rank, self.sample)))
        finite = finite_rows(read_embeddings(self.op, table, self.embedding, self.unit_norm))
        if not finite.all():
            first = table.column("key")[int(np.argmin(finite))].as_py()
            raise InputError(
                f"{self.op}.embedding: {int((~finite).sum())} rows of {self.embedding!r} are null, zero, NaN or "
                f"infinite (first key {first}); reject them in the stage that writes the column"
            )
        return table.select(["key", *self.reads()])

    def finish(self, state: Table) -> Artifact:
        """Raises CurateError where there are fewer rows than clusters."""
        rows = state.num_rows
        if not rows:
            raise CurateError(
                f"{self.op}: no rows to fit on (sample {self.sample:g}): everything upstream was refused; "
                "`curate status RUN` shows where and why"
            )
        if rows < self.levels[0]:
            raise CurateError(
                f"{self.op}.levels: {self.levels[0]} clusters for {rows} rows (sample {self.sample:g}); "
                "lower `levels` to at most the rows, or raise `sample`"
            )
        points = read_embeddings(self.op, state, self.embedding, self.unit_norm)
        points = points[pc.sort_indices(state.column("key")).to_numpy()]
        tree = fit_tree(
            points, self.levels, self.seed, self.rounds, self.resample, self.iterations, self.unit_norm, self.threads
        )
        told = {"embedding": self.embedding, "unit_norm": self.unit_norm, "rows": rows, "dim": points.shape[1]}
        centroids = {f"centroids_{t}": array for t, array in enumerate(tree.centroids, 1)}
        parents = {f"parents_{t}": array for t, array in enumerate(tree.parents, 1)}
        return {**centroids, **parents, "levels": {**told, "levels": list(tree.levels)}}
