"""`cluster.fit`: fit a tree of centroids to the embeddings of a pool."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from curate.core.contracts import Added, Artifact, Fit, Resources, Runtime, Table
from curate.core.errors import CurateError
from curate.core.group import Group
from curate.kernels.embeddings import LEAST_SPREAD, embedding_arrays, embedding_columns, encoder_identity

if TYPE_CHECKING:
    from curate.cluster.tree.levels import Tree

WHOLE_CLUSTERS = 1 << 15
"""Clusters up to which a level is fitted in one piece, unless `cells` is set."""


def _cells_given(value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    if not all(one is None or (type(one) is int and one >= 1) for one in values):
        raise ValueError("expected a number of at least 1, or a list of numbers and nulls, as in 300 or [null, 40]")
    return value


class FitTree(Fit):
    """Fit a tree of centroids by hierarchical k-means with resampling.

    Level 1 clusters the embeddings, each level above it the centroids of the level below.

    The artifact contains `centroids_1` .. `centroids_L` (K_t, d); `parents_1` .. `parents_{L-1}` (K_t,), each cluster's
    parent one level up; `sizes_1` .. `sizes_L` (K_t,), the number of fitted rows below each cluster;
    `distance_quantiles` (101,), percentiles of the squared distances of these rows to their leaf; `shards`, the shards
    fitted on; and `levels`: the settings that `cluster.assign` must share, and for each level its clusters, inertia,
    iterations and evenness. It does not depend on the number of workers and threads.

    A level of many clusters is fitted by cells: a coarse k-means cuts the space into cells, and each cell fits its
    share of the clusters to its own rows. Then `cells` (C, d) and `offsets` (C + 1,) replace `centroids_1`, whose rows
    are in the files `leaves`, one per cell. For a level t above, `cells_t` and `offsets_t` replace `centroids_t`, whose
    rows are in files of that name. Parents are then searched in the nearest cells, as `cluster.assign` searches leaves.
    """

    op: ClassVar[str] = "cluster.fit"
    version: ClassVar[int] = 2
    earlier: ClassVar[dict[str, Any]] = {"sample": 1.0}  # a share of the rows to fit on, before select.uniform
    kind: ClassVar[str] = "cluster_tree"

    levels: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = Field(
        description="Clusters per level, finest first, strictly decreasing: [400, 60, 12]."
    )
    rounds: int = Field(10, ge=0, description="Resampling rounds per level after its first k-means.")
    resample: list[Annotated[int, Field(ge=1)] | None] | None = Field(
        None,
        description="Points per centroid that a resampling round clusters, nearest first, per level, finest first; "
        "null means half the mean cluster size, 1 no resampling.",
    )
    iterations: int = Field(30, ge=1, description="Maximum passes of one k-means; it ends earlier once it converges.")
    schedule: Annotated[Literal["short", "published"], Added()] = Field(
        "short",
        description="`short`: a few passes per round, over a share of the rows in all rounds but the last; levels "
        "above the first end with a k-means over all inputs. `published`, as in Vo et al. 2024: a whole k-means by "
        "Lloyd's iterations in each round, over all points nearest to the centroids, and nothing afterwards; without "
        "`resample`, level 1 is not resampled.",
    )
    cells: Annotated[int | list[int | None] | None, BeforeValidator(_cells_given)] = Field(
        None,
        description="Cells of a level, each of which fits its share of the clusters separately; 1 means no cells. A "
        "number applies to level 1, a list has one number for each level, finest first. By default, or with null, a "
        "level of up to 32,768 clusters has no cells, and a larger one about the square root of its clusters.",
    )
    embedding: str = Field("embedding", description="Column with the vectors; `<name>_norm` holds their norms.")
    unit_norm: bool = Field(
        True,
        description="Cluster directions, with centroids of unit length; false clusters the vectors with their norms.",
    )
    seed: int = Field(0, ge=0, description="Seed of the initial centroids.")
    threads: Annotated[int, Runtime()] = Field(2, ge=1, description="Cores of one worker.")
    gpus: Annotated[float | None, Runtime()] = Field(
        None,
        ge=0,
        description="GPUs of one worker; null is one if the cluster has any.",
    )

    @model_validator(mode="after")
    def _levels_agree(self) -> Self:
        if any(below <= above for below, above in pairwise(self.levels)):
            raise ValueError(f"levels: {self.levels} must decrease strictly, finest first; as in [400, 60, 12]")
        if self.resample is not None and len(self.resample) != len(self.levels):
            raise ValueError(
                f"resample: {len(self.resample)} values for {len(self.levels)} levels; give one for each, finest first"
            )
        given = self._given_cells()
        if len(given) > len(self.levels):
            raise ValueError(f"cells: {len(given)} values for {len(self.levels)} levels; give at most one for each")
        for cells, clusters in zip(given, self.levels, strict=False):
            if cells is not None and cells > clusters:
                raise ValueError(f"cells: {cells} for {clusters} clusters; give at most one cell per cluster")
        return self

    def scaled(self, fraction: float) -> Self:
        """Shrink the levels with the pool. Their number stays, and they still decrease strictly."""
        levels: list[int] = []
        for clusters in reversed(self.levels):
            levels.insert(0, max(levels[0] + 1 if levels else 1, min(clusters, int(clusters * fraction))))
        cells = [
            None if given is None else min(clusters, max(1, int(given * fraction)))
            for given, clusters in zip(self._given_cells(), levels, strict=False)
        ]
        smaller = cells if isinstance(self.cells, list) else (cells or [None])[0]
        return self.model_copy(update={"levels": levels, "cells": smaller})

    def reads(self) -> tuple[str, ...]:
        return embedding_columns(self.embedding, self.unit_norm)

    def resources(self) -> Resources:
        return Resources(cpus=self.threads, gpus=self.gpus or 0)

    def placed(self, gpus: bool) -> Self:
        return self if self.gpus is not None else self.model_copy(update={"gpus": float(gpus)})

    def provenance(self, schema: pa.Schema) -> dict[str, str]:
        return encoder_identity(self.op, schema, self.embedding)

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        """Raises InputError if a vector cannot be clustered."""
        return embedding_arrays(self.op, table, self.embedding, self.unit_norm)

    def fit(self, group: Group) -> Artifact:
        """Raises CurateError if there are fewer rows than clusters."""
        from curate.cluster.tree.levels import fit_tree, level_settings

        rows = sum(group.rows)
        if not rows:
            why = "every row was rejected upstream; `curate status RUN` shows where and why"
            raise CurateError(f"{self.op}: no rows to fit on: {why}")
        if rows < self.levels[0]:
            raise CurateError(
                f"{self.op}.levels: {self.levels[0]} clusters for {rows} rows; lower `levels` to at most the rows, or "
                "fit on more"
            )
        published = self.schedule == "published"
        settings = level_settings(
            self.levels, self.seed, self.rounds, self.resample, self.iterations, self.unit_norm, published
        )
        tree = fit_tree(group, settings, self._cells(), resume=True)
        self._reject_short(tree)
        summary = {
            "embedding": self.embedding,
            "encoder": dict(group.provenance),
            "unit_norm": self.unit_norm,
            "rows": rows,
            "dim": tree.dim,
            "variance": tree.variance,
            "levels": list(tree.levels),
        }
        centroids = {f"centroids_{t}": array for t, array in enumerate(tree.centroids, 1) if array is not None}
        parents = {f"parents_{t}": array for t, array in enumerate(tree.parents, 1)}
        sizes = {f"sizes_{t}": array for t, array in enumerate(tree.sizes, 1)}
        shards = pa.table({"shard": pa.array(list(group.shards), pa.string())})
        facts = {"distance_quantiles": tree.distances, "shards": shards, "levels": summary}
        return {**centroids, **parents, **sizes, **tree.divided, **facts}

    def _reject_short(self, tree: Tree) -> None:
        """Raises CurateError if no distance between vectors is distinguishable from zero."""
        top = tree.centroids[-1] if tree.centroids[-1] is not None else tree.divided["cells"]
        if 0 < tree.variance < LEAST_SPREAD**2 and np.abs(top).max() < LEAST_SPREAD:
            raise CurateError(
                f"{self.op}.embedding: vectors of {self.embedding!r} are shorter than {LEAST_SPREAD:g}: their squares "
                "vanish in float32; write unit_norm: true, or scale them in the stage that writes the column"
            )

    def _given_cells(self) -> list[int | None]:
        if isinstance(self.cells, list):
            return list(self.cells)
        return [] if self.cells is None else [self.cells]

    def _cells(self) -> list[int]:
        """Cells of each level; 1 if it is fitted in one piece."""
        from curate.cluster.divide.level import default_cells

        given = [*self._given_cells(), *[None] * len(self.levels)]
        by_default = [default_cells(clusters) if clusters > WHOLE_CLUSTERS else 1 for clusters in self.levels]
        return [own if cells is None else cells for cells, own in zip(given, by_default, strict=False)]
