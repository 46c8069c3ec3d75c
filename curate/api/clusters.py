"""The clusters of a run: its profile, or else its tree. Reads sizes, parents and profiles but no centroids, so that a
tree of millions of leaves loads as fast as one of hundreds."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.core.errors import CurateError, InputError, RecipeError
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.selections import read_selection
from curate.core.recipe import registry
from curate.engine.record.runs import RunRecord
from curate.kernels.tree import TreeShape

TREE, PROFILE, DRIFT = "cluster_tree", "cluster_profile", "cluster_drift"
ASSIGN = "cluster.assign"
SORTS = {
    "rows": ("rows", "descending"),
    "distance": ("mean_distance", "descending"),
    "explained": ("explained", "ascending"),
    "sources": ("source_entropy", "ascending"),
    "name": ("name", "ascending"),
    "cluster": ("cluster", "ascending"),
}
"""Name of an order -> (column, direction); suspicious clusters come first."""


@dataclass(frozen=True)
class Clusters:
    """Clusters of a run. `table` has a row per cluster of every level, finest level first."""

    stage: str
    table: pa.Table
    levels: list[dict[str, Any]]
    """For each level, finest first: clusters, entropy, gini and, for a profile, the flags."""
    profiled: bool
    drifts: dict[str, dict[str, Any]]
    """Stage -> its drift figures."""
    rows_of: str = ""
    """The stage of the run that assigned rows to them, in the columns cluster_1 (finest), cluster_2, …; "" if none."""
    selection: str = ""
    """The last stage that selected from them; the column `chosen` of `table` has its quotas. "" if none did."""

    def level(self, number: int) -> pa.Table:
        """Clusters of a level; 1 is the finest."""
        start = sum(level["clusters"] for level in self.levels[: number - 1])
        return self.table.slice(start, self.levels[number - 1]["clusters"])

    def rows(self, number: int) -> tuple[int, int]:
        """(rows of a level, rows of its largest cluster)."""
        rows = self.level(number).column("rows").to_numpy()
        return int(rows.sum()), int(rows.max(initial=0))

    def one(self, level: int, number: int) -> dict[str, Any]:
        return dict(self.level(level).slice(number, 1).to_pylist()[0])

    def listed(
        self, level: int, sort: str, limit: int, parent: int | None = None, named: str = ""
    ) -> tuple[list[dict[str, Any]], int]:
        """(first `limit` clusters of a level in an order of SORTS, number of the rest); `parent`: only its children;
        `named`: only those whose name contains this text."""
        found = self.level(level)
        if named and "name" in found.column_names:
            found = found.filter(pc.match_substring(found.column("name"), named, ignore_case=True))
        if parent is not None:
            found = found.filter(pc.equal(found.column("parent"), parent))
        keys = list(dict.fromkeys((SORTS[sort], SORTS["cluster"])))
        order = pc.sort_indices(found, sort_keys=keys)[:limit]
        return found.take(order).to_pylist(), max(0, found.num_rows - limit)

    def check(self, level: int | None, number: int | None, sort: str, limit: int) -> int:
        """The requested level; None: the coarsest. Raises RecipeError if the level, cluster or order does not exist."""
        if sort not in SORTS:
            raise RecipeError(f"--sort {sort}: expected one of {', '.join(SORTS)}")
        if SORTS[sort][0] not in self.table.column_names:
            raise RecipeError(
                f"--sort {sort}: {self.stage} is not a profile; sort by rows, or add a `cluster.profile` stage"
            )
        if limit < 1:
            raise RecipeError(f"--limit {limit}: expected at least 1")
        wanted = len(self.levels) if level is None else level
        if not 1 <= wanted <= len(self.levels):
            raise RecipeError(f"--level {level}: expected 1 (finest) to {len(self.levels)}")
        clusters = self.levels[wanted - 1]["clusters"]
        if number is not None and not 0 <= number < clusters:
            raise RecipeError(f"--cluster {number}: expected 0 to {clusters - 1} at level {wanted}")
        return wanted

    def export(self, file: Path) -> int:
        """Write the table as a parquet file; returns its rows. Raises RecipeError if the file cannot be written."""
        aside = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            pq.write_table(self.table, aside, compression="zstd")
            aside.replace(file)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise RecipeError(f"cannot write {file} ({error.strerror or error}); choose another path") from None
        return int(self.table.num_rows)


def clusters_of(run: RunRecord, stage: str | None = None) -> Clusters:
    """The profile built by a run, or else its tree, or a pinned one. Raises InputError if there is none."""
    made = artifacts_of(run)
    drifts = {name: StoredArtifact(run.storage, base)["drift"] for name, (kind, base) in made.items() if kind == DRIFT}
    chosen = _chosen(run, {name: kind for name, (kind, _) in made.items() if kind in (TREE, PROFILE)}, stage)
    kind, base = made[chosen]
    held, about = StoredArtifact(run.storage, base), run.record["stages"]
    profiled = kind == PROFILE
    table = held["clusters"] if profiled else TreeShape.of(held).table(held["sizes_1"])
    levels = held["profile"]["levels"] if profiled else held["levels"]["levels"]
    tree = about.get(chosen, {}).get("ports", {}).get("tree", chosen) if profiled else chosen
    users = [name for name, one in about.items() if one.get("ports", {}).get("tree") == tree and name in run.outputs]
    rows_of = [name for name in users if about[name]["op"] == ASSIGN]
    selections = [name for name in users if str(run.outputs[name]["base"]).startswith("selections/")]
    found = Clusters(chosen, table, levels, profiled, drifts, rows_of[-1] if rows_of else "")
    return _with_quotas(run, found, selections[-1]) if selections else found


def _with_quotas(run: RunRecord, found: Clusters, stage: str) -> Clusters:
    """With the column `chosen`: copies that a selection requested of each cluster, null below its level."""
    about = run.record["stages"][stage]
    try:
        level = registry.resolve(about["op"])(**about["parameters"]).units_level()  # type: ignore[attr-defined]
        quotas = read_selection(run.storage, run.outputs[stage]["base"], "quotas.parquet", ["quota"])
    except (CurateError, AttributeError):  # an op of a package that is not installed, or without quotas
        return found
    counts = [np.zeros(found.level(number).num_rows, np.int64) for number in range(1, len(found.levels) + 1)]
    if level > len(counts) or len(quotas) != len(counts[level - 1]):
        return found
    counts[level - 1] += quotas.column("quota").to_numpy()
    for number in range(level, len(counts)):
        parents = found.level(number).column("parent").to_numpy()
        np.add.at(counts[number], parents, counts[number - 1])
    below = sum(len(one) for one in counts[: level - 1])
    column = pa.array(np.concatenate(counts), pa.int64(), mask=np.arange(found.table.num_rows) < below)
    return replace(found, table=found.table.append_column("chosen", column), selection=stage)


def artifacts_of(run: RunRecord) -> dict[str, tuple[str, str]]:
    """Stage, or `pin:NAME` -> (kind of its artifact, base)."""
    kinds, outputs = run.kinds(), run.outputs
    found = {name: (kinds[name], str(output["base"])) for name, output in outputs.items() if name in kinds}
    for name, pin in ((run.result or {}).get("pins") or {}).items():
        manifest = Manifest.load(run.storage, pin["base"])
        if manifest is not None:
            found[name] = (_kind(manifest.op), pin["base"])
    return found


def _kind(op: str) -> str:
    """Kind of artifact that an op builds; "" if its package is not installed."""
    try:
        return str(getattr(registry.resolve(op), "kind", ""))
    except CurateError:
        return ""


def _chosen(run: RunRecord, kinds: dict[str, str], stage: str | None) -> str:
    """Choose a stage: profiles before trees, artifacts of this run before pinned ones."""
    if stage is not None:
        if stage not in kinds:
            known = ", ".join(kinds) or "none"
            raise InputError(f"--stage {stage}: built no clusters in run {run.run_id}; stages that did: {known}")
        return stage
    if not kinds:
        raise InputError(f"run {run.run_id}: no cluster tree; name a run whose recipe has `cluster.fit`")
    own = [name for name in kinds if name in run.outputs]
    several = [name for name in own if kinds[name] == PROFILE] or own or list(kinds)
    if len(several) > 1:
        raise InputError(f"run {run.run_id}: several cluster stages ({', '.join(several)}); choose one with --stage")
    return several[0]
