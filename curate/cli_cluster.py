"""`curate cluster`: the clusters of a run, printed or written to a file. Reads sizes, parents and profiles, never
centroids, so that a tree of millions of leaves is looked at as easily as one of hundreds."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from curate.core.errors import CurateError, InputError, RecipeError
from curate.core.storage import open_workspace

if TYPE_CHECKING:
    import pyarrow as pa

    from curate.engine.record.runs import Run

cluster = typer.Typer(help="The clusters of a run: sizes, spread, sources, names, flags.", no_args_is_help=True)
out = Console(width=None if sys.stdout.isatty() else 150)

Workspace = Annotated[
    str, typer.Option("--workspace", "-w", envvar="CURATE_WORKSPACE", help="Folder or URL (s3://…) of all outputs.")
]
StageName = Annotated[
    str | None, typer.Option("--stage", help="Stage that made the tree or its profile, where the run has several.")
]
TREE, PROFILE, DRIFT = "cluster_tree", "cluster_profile", "cluster_drift"
SORTS = {
    "rows": ("rows", "descending"),
    "distance": ("mean_distance", "descending"),
    "explained": ("explained", "ascending"),
    "sources": ("source_entropy", "ascending"),
    "name": ("name", "ascending"),
    "cluster": ("cluster", "ascending"),
}
"""--sort -> column and order: what deserves a look comes first."""


@dataclass(frozen=True)
class Found:
    """What a run says of its clusters. `table` has a row per cluster of every level, finest level first."""

    run: Run
    stage: str
    table: pa.Table
    levels: list[dict[str, Any]]
    """clusters, entropy, gini, and of a profile the flags, by level, finest first."""
    profiled: bool
    drifts: dict[str, dict[str, Any]]

    def level(self, number: int) -> pa.Table:
        start = sum(level["clusters"] for level in self.levels[: number - 1])
        return self.table.slice(start, self.levels[number - 1]["clusters"])


@cluster.command("show")
def show(
    run_id: Annotated[str | None, typer.Argument(help="Run id; the latest run when left out.")] = None,
    workspace: Workspace = "",
    level: Annotated[int | None, typer.Option(help="Level to list, 1 the finest; the coarsest if left out.")] = None,
    number: Annotated[
        int | None, typer.Option("--cluster", help="One cluster of the level, with those inside of it.")
    ] = None,
    sort: Annotated[str, typer.Option(help=f"What comes first: {', '.join(SORTS)}.")] = "rows",
    limit: Annotated[int, typer.Option(help="Clusters to list at most.")] = 20,
    stage: StageName = None,
) -> None:
    """Levels and clusters of a tree: rows, spread, sources, names and flags. Without a profile, sizes alone."""
    found = find(workspace, run_id, stage)
    wanted = _checked(found, level, number, sort, limit)
    if number is None:
        out.print(_levels(found))
        _list(found, found.level(wanted), f"level {wanted}", sort, limit)
    else:
        own = found.level(wanted).slice(number, 1)
        out.print(_table(found, own, f"level {wanted}, cluster {number}"))
        _list_children(found, wanted, number, sort, limit)
    for name, drift in found.drifts.items():
        out.print(f"{name}: {_verdict(drift)}", highlight=False, soft_wrap=True)


@cluster.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    workspace: Workspace = "",
    run_id: Annotated[str | None, typer.Option("--run", help="Run to look in; the latest if left out.")] = None,
    stage: StageName = None,
) -> None:
    """The tree as parquet, a row per cluster of every level: parent, rows, leaves, and all that a profile says."""
    import pyarrow.parquet as pq

    found = find(workspace, run_id, stage)
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        pq.write_table(found.table, aside, compression="zstd")
        aside.replace(file)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise RecipeError(f"{file}: cannot be written ({error.strerror or error}); choose another place") from None
    what = "with its profile" if found.profiled else "without a profile: sizes alone"
    out.print(f"{found.table.num_rows:,} clusters of {found.stage} ({what}) in {file}", highlight=False, soft_wrap=True)


# --- finding ----------------------------------------------------------------------------------------------------------


def find(workspace: str, run_id: str | None, stage: str | None) -> Found:
    """The profile that a run has made, or else its tree, or a pinned one. Raises InputError where there is none."""
    from curate.core.nouns import StoredArtifact
    from curate.core.tree import TreeShape
    from curate.engine.record.runs import latest

    if not workspace:
        raise RecipeError("--workspace is missing; give a folder or URL, or set CURATE_WORKSPACE")
    run = latest(open_workspace(workspace, create=False), run_id)
    made = _made(run)
    drifts = {name: StoredArtifact(run.storage, base)["drift"] for name, (kind, base) in made.items() if kind == DRIFT}
    chosen = _chosen(run, {name: kind for name, (kind, _) in made.items() if kind in (TREE, PROFILE)}, stage)
    kind, base = made[chosen]
    held = StoredArtifact(run.storage, base)
    if kind == PROFILE:
        return Found(run, chosen, held["clusters"], held["profile"]["levels"], True, drifts)
    table = TreeShape.of(held).table(held["sizes_1"])
    return Found(run, chosen, table, held["levels"]["levels"], False, drifts)


def _made(run: Run) -> dict[str, tuple[str, str]]:
    """Stage, or `pin:NAME` -> (kind of its artifact, base)."""
    from curate.core.nouns import Manifest

    kinds, outputs = run.kinds(), run.outputs
    found = {name: (kinds[name], str(output["base"])) for name, output in outputs.items() if name in kinds}
    for name, pin in ((run.result or {}).get("pins") or {}).items():
        manifest = Manifest.load(run.storage, pin["base"])
        if manifest is not None:
            found[name] = (_kind(manifest.op), pin["base"])
    return found


def _kind(op: str) -> str:
    """What an op makes; "" where its package is not installed here."""
    from curate.core import registry

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


def _checked(found: Found, level: int | None, number: int | None, sort: str, limit: int) -> int:
    """The level asked for. Raises RecipeError for what the tree does not have."""
    if sort not in SORTS:
        raise RecipeError(f"--sort {sort}: expected one of {', '.join(SORTS)}")
    if SORTS[sort][0] not in found.table.column_names:
        raise RecipeError(f"--sort {sort}: {found.stage} is no profile; sort by rows, or add a `cluster.profile` stage")
    if limit < 1:
        raise RecipeError(f"--limit {limit}: expected at least 1")
    wanted = len(found.levels) if level is None else level
    if not 1 <= wanted <= len(found.levels):
        raise RecipeError(f"--level {level}: the tree has levels 1 (finest) to {len(found.levels)}")
    clusters = found.levels[wanted - 1]["clusters"]
    if number is not None and not 0 <= number < clusters:
        raise RecipeError(f"--cluster {number}: level {wanted} has clusters 0 to {clusters - 1}")
    return wanted


# --- printing ---------------------------------------------------------------------------------------------------------


def _levels(found: Found) -> Table:
    flags = ("empty", "tiny", "noise", "single_source") if found.profiled else ()
    table = Table("level", "clusters", "rows", "largest", "entropy", "gini", *flags, header_style="bold")
    for number, level in reversed(list(enumerate(found.levels, 1))):
        rows = found.level(number).column("rows").to_numpy()
        cells = [f"{level['entropy']:.3f}", f"{level['gini']:.3f}"]
        cells += [f"{level['flags'].get(flag, 0):,}" for flag in flags]
        largest = int(rows.max(initial=0))
        table.add_row(str(number), f"{level['clusters']:,}", f"{int(rows.sum()):,}", f"{largest:,}", *cells)
    return table


def _list_children(found: Found, level: int, number: int, sort: str, limit: int) -> None:
    import pyarrow.compute as pc

    if level == 1:
        out.print("a leaf: `curate explain KEY` says which one a sample lies in")
        return
    below = found.level(level - 1)
    _list(
        found, below.filter(pc.equal(below.column("parent"), number)), f"level {level - 1}, inside of it", sort, limit
    )


def _list(found: Found, clusters: pa.Table, title: str, sort: str, limit: int) -> None:
    import pyarrow.compute as pc

    keys = list(dict.fromkeys((SORTS[sort], SORTS["cluster"])))
    order = pc.sort_indices(clusters, sort_keys=keys)[:limit]
    out.print(_table(found, clusters.take(order), f"{title}, by {sort}"))
    if clusters.num_rows > limit:
        out.print(f"{clusters.num_rows - limit:,} more; --limit shows them, `curate cluster export` writes them all")


def _table(found: Found, clusters: pa.Table, title: str) -> Table:
    total = max(1, int(found.level(len(found.levels)).column("rows").to_numpy().sum()))
    columns = ["cluster", "in", "rows", "share", "leaves"]
    if found.profiled:
        columns += ["distance", "explained", "sources", "top source", "name", "flags"]
    table = Table(*columns, title=title, title_justify="left", header_style="bold")
    for row in clusters.to_pylist():
        parent = "" if row["parent"] is None else str(row["parent"])
        cells = [str(row["cluster"]), parent, f"{row['rows']:,}", f"{row['rows'] / total:.2%}", f"{row['leaves']:,}"]
        table.add_row(*cells, *(_facts(row) if found.profiled else ()))
    return table


def _facts(row: dict[str, Any]) -> list[str]:
    """mean squared distance, variance explained, effective number of sources, the largest, name, flags."""

    def shown(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    entropy = row["source_entropy"]
    top = "" if row["top_source"] is None else f"{escape(row['top_source'])} {row['top_source_share']:.0%}"
    flags = ", ".join(flag.replace("_", " ") for flag in row["flags"])
    return [
        shown(row["mean_distance"], ".4f"),
        shown(row["explained"], ".0%"),
        shown(None if entropy is None else 2**entropy, ".1f"),
        top,
        escape(row["name"]),
        f"[yellow]{flags}[/yellow]" if flags else "",
    ]


def _verdict(drift: dict[str, Any]) -> str:
    if drift["due"]:
        return f"a refit is due: {'; '.join(drift['reasons'])}"
    if not drift["enough"]:
        return f"{drift['new_rows']:,} rows are new; from {drift['least_rows']:,} on it is said whether a refit is due"
    return f"no refit is due: {drift['new_rows']:,} new rows lie and spread as those fitted on"
