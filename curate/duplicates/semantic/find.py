"""`duplicates.semantic`: images with nearly equal embeddings, found within and across the cells of a cluster tree.

Unlike exact and near-duplicate sets, semantic sets are not transitive; otherwise a chain of slightly different images
could merge a whole cluster into one set. Every dropped image is within eps of its keeper, and no two kept images that
were compared are within eps of each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Fit, Resources, Runtime, Table
from curate.core.errors import CurateError, InputError
from curate.core.group import Group, Part
from curate.core.hashing import key_words
from curate.core.row_lookup import SHARD, SHARDS, as_bytes, part_of, shard_index, shard_words, starts_of, store
from curate.core.vectors import from_binary, same_encoder
from curate.duplicates.semantic.kernels import unit_rows
from curate.duplicates.semantic.sets import SemanticSets, semantic_sets
from curate.kernels.embeddings import encoder_identity, finite_rows, read_embeddings

KIND, MEMBERS = "duplicate_sets", "members"
KEEPER, SEMANTIC = 0, 3
"""Numbers of the kinds in `curate.duplicates.near.find.KINDS`."""


class SemanticDuplicates(Fit):
    """Find sets of images whose embeddings are within `eps` of a kept image's: cosine above 1 - eps.

    Rows are compared greedily, in the order of `keep` and with kept rows only, within the cells of one level of a
    cluster tree (SemDeDup, Abbas et al. 2023). They are also compared with rows of neighbouring cells, to find pairs
    that a cell border separates. Artifact, for `duplicates.members`: `members`, one file per range of shards, with key,
    keeper, kind (keeper or semantic) and similarity of each member of a set of two or more; and `summary`, counts.
    """

    op: ClassVar[str] = "duplicates.semantic"
    version: ClassVar[int] = 2
    kind: ClassVar[str] = KIND
    ports: ClassVar[dict[str, str]] = {"tree": "cluster_tree"}

    eps: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="Pairs with a cosine above 1 - eps are duplicates; a good value depends on the encoder.",
    )
    keep: Literal["farthest", "closest", "random"] = Field(
        "farthest",
        description="Row to keep of a set: the farthest from its cell's centroid (hard examples, as in SemDeDup), the "
        "closest, or the one with the lowest hash(seed, key).",
    )
    level: int | None = Field(
        None,
        ge=1,
        description="Level of the tree whose clusters are the cells; 1 is the finest. null selects the coarsest level "
        "with a mean of at most `cell_rows` rows per cell, or the finest level if none has.",
    )
    cell_rows: int = Field(20_000, ge=1, description="Maximum mean number of rows per cell if `level` is null.")
    neighbours: int | None = Field(
        2,
        ge=0,
        description="Maximum number of neighbouring cells in which to look for a row's duplicates, out of those that "
        "may have any; null searches them all, 0 none (SemDeDup as published).",
    )
    embedding: str = Field("embedding", description="Column of vectors, written by `image.embed`.")
    seed: int = Field(0, ge=0, description="Seed of `keep: random`.")
    threads: Annotated[int, Runtime()] = Field(1, ge=1, description="Cores of one task.")

    _tree: Artifact = PrivateAttr()
    _clusters: list[int] = PrivateAttr()
    """Clusters per level, finest first."""

    def reads(self) -> tuple[str, ...]:
        return (self.embedding,)

    def resources(self) -> Resources:
        return Resources(cpus=self.threads)

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if the tree does not have `level`."""
        self._tree = artifacts["tree"]
        self._clusters = [level["clusters"] for level in self._tree["levels"]["levels"]]
        count = len(self._clusters)
        if self.level is not None and self.level > count:
            raise CurateError(f"{self.op}.level: {self.level}, but its `tree` has {count} levels; write 1 to {count}")

    def provenance(self, schema: pa.Schema) -> dict[str, str]:
        return encoder_identity(self.op, schema, self.embedding)

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        """`shard` (n,), `key` (n, 2) words, `vector` (n, d) float16. Raises InputError if a vector has no direction,
        CurateError if the vectors are of another encoder or dimension than the tree's."""
        levels = self._tree["levels"]
        expected = {**levels.get("encoder", {}), "dim": str(levels["dim"])}
        remedy = "compare with the encoder that the tree was fitted on"
        same_encoder(self.op, table.schema.field(self.embedding), expected, "tree", remedy)
        vectors = read_embeddings(self.op, table, self.embedding, True)
        finite = finite_rows(vectors)
        if not finite.all():
            first = table.column("key")[int(np.argmin(finite))].as_py()
            raise InputError(
                f"{self.op}.embedding: {int((~finite).sum())} rows of {self.embedding!r} are null, zero, NaN or "
                f"infinite (first key {first}); reject them in the stage that writes the column"
            )
        halves = from_binary(table.column(self.embedding)).astype(np.float16)  # as stored
        return {SHARD: shard_words(table), "key": key_words(table.column("key").to_pylist()), "vector": halves}

    def fit(self, group: Group) -> Artifact:
        rows = sum(group.rows)
        level = self.level or self.level_for(rows)
        if f"centroids_{level}" not in self._tree:
            clusters = "leaves" if level == 1 else f"clusters of level {level}"
            raise CurateError(
                f"{self.op}.level: {level}, but the {clusters} of its `tree` were fitted by cells and are in many "
                f"files; write a level from {min(self._levels_in_one_file(), default=1)} to {len(self._clusters)}"
            )
        centroids = unit_rows(self._tree[f"centroids_{level}"])
        found = semantic_sets(group, np.nan_to_num(centroids), self.eps, self.keep, self.neighbours, self.seed)
        sizes = np.unique(found.keeper, return_counts=True)[1] + 1
        summary = {
            "rows": rows,
            "sets": len(sizes),
            "largest_set": int(sizes.max(initial=0)),
            "semantic_duplicates": len(found.row),
            "eps": self.eps,
            "level": level,
            "cells": len(centroids),
            **found.counts,
        }
        store_members(group, found)
        return {SHARDS: shard_index(group), "summary": summary}

    def level_for(self, rows: int) -> int:
        """Coarsest level with a mean of at most `cell_rows` rows per cell, or else the finest level. Considers only
        levels whose centroids are in one file."""
        available = self._levels_in_one_file()
        fitting = [level for level in available if rows <= self.cell_rows * self._clusters[level - 1]]
        return max(fitting, default=min(available, default=1))

    def _levels_in_one_file(self) -> list[int]:
        return [level for level in range(1, len(self._clusters) + 1) if f"centroids_{level}" in self._tree]


def store_members(group: Group, found: SemanticSets) -> None:
    """Store as `members`, per part of the group, the rows that are in sets: `key` (n, 16 bytes, sorted), `keeper`
    (n, 16 bytes), `kind` (n,) and `similarity` (n,)."""
    keepers = np.unique(found.keeper)
    rows, keeper = np.concatenate([found.row, keepers]), np.concatenate([found.keeper, keepers])
    requested, starts = np.unique(rows), starts_of(group)
    keys = as_bytes(np.concatenate(list(group.each(_keys_of, rows=requested, starts=starts))))
    members = {
        "row": rows,
        "key": keys[np.searchsorted(requested, rows)],
        "keeper": keys[np.searchsorted(requested, keeper)],
        "kind": np.where(rows == keeper, KEEPER, SEMANTIC).astype(np.int8),
        "similarity": np.concatenate([found.similarity, np.ones(len(keepers), np.float32)]),
    }
    scattered = group.scatter("found", members)
    store(scattered.partition("members-by-part", _to_parts, len(group.rows), starts=starts), MEMBERS)


def _to_parts(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    arrays = {name: np.asarray(array) for name, array in part.arrays.items()}
    return part_of(shared["starts"], arrays.pop("row")), arrays


def _keys_of(part: Part, shared: Mapping[str, Any]) -> NDArray[np.uint64]:
    """Key words of the requested rows that are in the part."""
    edges: Sequence[int] = shared["starts"][part.index : part.index + 2]
    low, high = np.searchsorted(shared["rows"], edges)
    return np.asarray(part.arrays["key"])[shared["rows"][low:high] - edges[0]]
