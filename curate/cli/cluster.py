"""`curate cluster`: print or export the clusters of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from curate.cli.common import RunId, WorkspaceUrl, opened, out

if TYPE_CHECKING:
    from curate.api import Clusters

cluster = typer.Typer(help="Clusters of a run: sizes, spread, sources, names, flags.", no_args_is_help=True)

StageName = Annotated[
    str | None, typer.Option("--stage", help="Stage that built the tree or its profile, if the run has several.")
]


@cluster.command("show")
def show(
    run_id: RunId = None,
    workspace: WorkspaceUrl = "",
    level: Annotated[int | None, typer.Option(help="Level to list; 1 is the finest (default: the coarsest).")] = None,
    number: Annotated[
        int | None, typer.Option("--cluster", help="Show one cluster of the level and its children.")
    ] = None,
    sort: Annotated[str, typer.Option(help="Sort by rows, distance, explained, sources, name or cluster.")] = "rows",
    limit: Annotated[int, typer.Option(help="Maximum number of clusters to list.")] = 20,
    stage: StageName = None,
) -> None:
    """Show the levels and clusters of a tree: rows, spread, sources, names and flags; without a profile, only sizes."""
    found = opened(workspace).run(run_id).clusters(stage)
    wanted = found.check(level, number, sort, limit)
    if number is None:
        out.print(_levels(found))
        _list(found, wanted, f"level {wanted}", sort, limit)
    else:
        out.print(_table(found, [found.one(wanted, number)], f"level {wanted}, cluster {number}"))
        if wanted == 1:
            out.print("a leaf; `curate explain KEY` shows the leaf of a sample")
        else:
            _list(found, wanted - 1, f"level {wanted - 1}, its children", sort, limit, number)
    for name, drift in found.drifts.items():
        out.print(f"{name}: {_verdict(drift)}", highlight=False, soft_wrap=True)


@cluster.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    workspace: WorkspaceUrl = "",
    run_id: Annotated[str | None, typer.Option("--run", help="Run id (default: the latest run).")] = None,
    stage: StageName = None,
) -> None:
    """Write the tree as Parquet, a row per cluster of every level: parent, rows, leaves and the profile's columns."""
    found = opened(workspace).run(run_id).clusters(stage)
    rows = found.export(file)
    what = "with its profile" if found.profiled else "without a profile: only sizes"
    out.print(f"{rows:,} clusters of {found.stage} ({what}) in {file}", highlight=False, soft_wrap=True)


def _levels(found: Clusters) -> Table:
    flags = ("empty", "tiny", "noise", "single_source") if found.profiled else ()
    table = Table("level", "clusters", "rows", "largest", "entropy", "gini", *flags, header_style="bold")
    for number, level in reversed(list(enumerate(found.levels, 1))):
        rows, largest = found.rows(number)
        cells = [f"{level['entropy']:.3f}", f"{level['gini']:.3f}"]
        cells += [f"{level['flags'].get(flag, 0):,}" for flag in flags]
        table.add_row(str(number), f"{level['clusters']:,}", f"{rows:,}", f"{largest:,}", *cells)
    return table


def _list(found: Clusters, level: int, title: str, sort: str, limit: int, parent: int | None = None) -> None:
    rows, more = found.listed(level, sort, limit, parent)
    out.print(_table(found, rows, f"{title}, by {sort}"))
    if more:
        out.print(f"{more:,} more; raise --limit to list them, or use `curate cluster export`")


def _table(found: Clusters, clusters: list[dict[str, Any]], title: str) -> Table:
    total = max(1, found.rows(len(found.levels))[0])
    columns = ["cluster", "in", "rows", "share", "leaves"]
    if found.profiled:
        columns += ["distance", "explained", "sources", "top source", "name", "flags"]
    table = Table(*columns, title=title, title_justify="left", header_style="bold")
    for row in clusters:
        parent = "" if row["parent"] is None else str(row["parent"])
        cells = [str(row["cluster"]), parent, f"{row['rows']:,}", f"{row['rows'] / total:.2%}", f"{row['leaves']:,}"]
        table.add_row(*cells, *(_facts(row) if found.profiled else ()))
    return table


def _facts(row: dict[str, Any]) -> list[str]:
    """Cells: mean squared distance, variance explained, effective number of sources, largest source, name, flags."""

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
        return f"refit recommended: {'; '.join(drift['reasons'])}"
    if not drift["enough"]:
        return f"{drift['new_rows']:,} new rows; at least {drift['least_rows']:,} are needed to judge drift"
    return f"no refit needed: {drift['new_rows']:,} new rows are distributed like the fitted ones"
