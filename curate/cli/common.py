"""Shared by the commands: the console, common options, and opening a workspace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from curate.core.errors import RecipeError

if TYPE_CHECKING:
    from curate.api import Run, Workspace

out = Console(width=None if sys.stdout.isatty() else 150)
WorkspaceUrl = Annotated[
    str, typer.Option("--workspace", "-w", envvar="CURATE_WORKSPACE", help="Folder or URL (s3://…) of all outputs.")
]
RunId = Annotated[str | None, typer.Argument(help="Run id (default: the latest run).")]


def opened(url: str) -> Workspace:
    """A workspace, existing or not. Imported here because commands that only describe stages do not need it."""
    from curate.api import Workspace

    if not url:
        raise RecipeError("--workspace is missing; give a folder or URL, or set CURATE_WORKSPACE")
    return Workspace(url)


def show_outputs(run: Run) -> None:
    """Print the URLs of a run's datasets and reports."""
    for output in run.record.outputs.values():
        place = run.workspace.url_of(output["base"])
        if output["base"].startswith("datasets/"):
            out.print(f"dataset  {place}", soft_wrap=True, highlight=False)
        if output["base"].startswith("artifacts/report."):
            out.print(f"report   {place}/index.html", soft_wrap=True, highlight=False)
