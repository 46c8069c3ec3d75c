"""The clusters of a run: its profile, or else its tree. Reads sizes, parents and profiles, never centroids, so that a
tree of millions of leaves is looked at as easily as one of hundreds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.core.errors import CurateError, InputError, RecipeError
from curate.core.nouns import Manifest, StoredArtifact
from curate.core.recipe import registry
from curate.engine.record.runs import Run
from curate.kernels.tree import TreeShape

TREE, PROFILE, DRIFT = "cluster_tree", "cluster_profile", "cluster_drift"
SORTS = {
    "rows": ("rows", "descending"),
    "distance": ("mean_distance", "descending"),
    "explained": ("explained", "ascending"),
    "sources": ("source_entropy", "ascending"),
    "name": ("name", "ascending"),
    "cluster": ("cluster", "ascending"),
}
"""Name of an order -> column and direction: what deserves a look comes first."""


@dataclass(frozen=True)
class Clusters:
    """What a run says of its clusters. `table` has a row per cluster of every level, finest level first."""

    stage: str
    table: pa.Table
    levels: list[dict[str, Any]]
    """clusters, entropy, gini, and of a profile the flags, by level, finest first."""
    profiled: bool
    drifts: dict[str, dict[str, Any]]
    """Stage -> what it says of drift."""

    def level(self, number: int) -> pa.Table:
        """Clusters of a level, 1 the finest."""
        start = sum(level["clusters"] for level in self.levels[: number - 1])
        return self.table.slice(start, self.levels[number - 1]["clusters"])

    def rows(self, number: int) -> tuple[int, int]:
        """Rows of a level, and of its largest cluster."""
        rows = self.level(number).column("rows").to_numpy()
        return int(rows.sum()), int(rows.max(initial=0))

    def one(self, level: int, number: int) -> dict[str, Any]:
        return dict(self.level(level).slice(number, 1).to_pylist()[0])

    def listed(self, level: int, sort: str, limit: int, parent: int | None = None) -> tuple[list[dict[str, Any]], int]:
        """The first clusters of a level in an order (of SORTS), or of those inside of one above; and how many more."""
        found = self.level(level)
        if parent is not None:
            found = found.filter(pc.equal(found.column("parent"), parent))
        keys = list(dict.fromkeys((SORTS[sort], SORTS["cluster"])))
        order = pc.sort_indices(found, sort_keys=keys)[:limit]
        return found.take(order).to_pylist(), max(0, found.num_rows - limit)

    def check(self, level: int | None, number: int | None, sort: str, limit: int) -> int:
        """The level asked for, the coarsest if None. Raises RecipeError for what the tree does not have."""
        if sort not in SORTS:
            raise RecipeError(f"--sort {sort}: expected one of {', '.join(SORTS)}")
        if SORTS[sort][0] not in self.table.column_names:
            raise RecipeError(
                f"--sort {sort}: {self.stage} is no profile; sort by rows, or add a `cluster.profile` stage"
            )
        if limit < 1:
            raise RecipeError(f"--limit {limit}: expected at least 1")
        wanted = len(self.levels) if level is None else level
        if not 1 <= wanted <= len(self.levels):
            raise RecipeError(f"--level {level}: the tree has levels 1 (finest) to {len(self.levels)}")
        clusters = self.levels[wanted - 1]["clusters"]
        if number is not None and not 0 <= number < clusters:
            raise RecipeError(f"--cluster {number}: level {wanted} has clusters 0 to {clusters - 1}")
        return wanted

    def export(self, file: Path) -> int:
        """Write the table as a parquet file; returns its rows. RecipeError where that cannot be done."""
        aside = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            pq.write_table(self.table, aside, compression="zstd")
            aside.replace(file)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise RecipeError(f"{file}: cannot be written ({error.strerror or error}); choose another place") from None
        return int(self.table.num_rows)


def clusters_of(run: Run, stage: str | None = None) -> Clusters:
    """The profile that a run has made, or else its tree, or a pinned one. Raises InputError where there is none."""
    made = _made(run)
    drifts = {name: StoredArtifact(run.storage, base)["drift"] for name, (kind, base) in made.items() if kind == DRIFT}
    chosen = _chosen(run, {name: kind for name, (kind, _) in made.items() if kind in (TREE, PROFILE)}, stage)
    kind, base = made[chosen]
    held = StoredArtifact(run.storage, base)
    if kind == PROFILE:
        return Clusters(chosen, held["clusters"], held["profile"]["levels"], True, drifts)
    table = TreeShape.of(held).table(held["sizes_1"])
    return Clusters(chosen, table, held["levels"]["levels"], False, drifts)


def _made(run: Run) -> dict[str, tuple[str, str]]:
    """Stage, or `pin:NAME` -> (kind of its artifact, base)."""
    kinds, outputs = run.kinds(), run.outputs
    found = {name: (kinds[name], str(output["base"])) for name, output in outputs.items() if name in kinds}
    for name, pin in ((run.result or {}).get("pins") or {}).items():
        manifest = Manifest.load(run.storage, pin["base"])
        if manifest is not None:
            found[name] = (_kind(manifest.op), pin["base"])
    return found


def _kind(op: str) -> str:
    """What an op makes; "" where its package is not installed here."""
    try:
        return str(getattr(registry.resolve(op), "kind", ""))
    except CurateError:
        return ""


def _chosen(run: Run, kinds: dict[str, str], stage: str | None) -> str:
    """A profile before a tree, and what the run has made before what is pinned."""
    if stage is not None:
        if stage not in kinds:
            known = ", ".join(kinds) or "none"
            raise InputError(f"--stage {stage}: makes no clusters in run {run.run_id}; stages that do are {known}")
        return stage
    if not kinds:
        raise InputError(f"run {run.run_id}: has built no tree of clusters; name a run whose recipe has `cluster.fit`")
    own = [name for name in kinds if name in run.outputs]
    several = [name for name in own if kinds[name] == PROFILE] or own or list(kinds)
    if len(several) > 1:
        raise InputError(f"run {run.run_id}: has clusters of {', '.join(several)}; name one with --stage")
    return several[0]
