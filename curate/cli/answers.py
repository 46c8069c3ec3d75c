"""Commands that take stored answers of costly stages to another workspace."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from curate.cli.common import WorkspaceUrl, opened, out

answers = typer.Typer(
    help="Stored answers of costly stages, such as captions: export and import.", no_args_is_help=True
)


@answers.command("export")
def export_answers(
    target: Annotated[str, typer.Argument(metavar="DEST", help="Folder or URL to write to; it must have no export.")],
    workspace: WorkspaceUrl = "",
    op: Annotated[str | None, typer.Option(help="Only answers of stages of this op, such as caption.generate.")] = None,
) -> None:
    """Write the final answers of costly stages with their inputs and all columns, as Parquet files."""
    table = Table("op", "stage", header_style="bold")
    for name in ("answers", "files", "bytes"):
        table.add_column(name, justify="right")
    for found in opened(workspace).export_answers(target, op):
        table.add_row(found.op, found.stage, f"{found.rows:,}", f"{len(found.parts):,}", f"{found.bytes:,}")
    out.print(table)


@answers.command("import")
def import_answers(
    source: Annotated[str, typer.Argument(help="Folder or URL that `curate answers export` wrote.")],
    workspace: WorkspaceUrl = "",
) -> None:
    """Add exported answers to a workspace: rows with the same inputs use them. Repeating it has no effect."""
    table = Table("op", "stage", header_style="bold")
    for name in ("imported", "existing"):
        table.add_column(name, justify="right")
    for found in opened(workspace).import_answers(source):
        table.add_row(found.op, found.stage, f"{found.rows:,}", f"{found.skipped:,}")
    out.print(table)
