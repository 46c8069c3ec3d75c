"""What the commands of `curate` share: the console, the option that names a workspace, and opening it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from curate.core.errors import RecipeError
from curate.core.storage import Storage, open_workspace

if TYPE_CHECKING:
    from curate.engine.record.runs import Run

out = Console(width=None if sys.stdout.isatty() else 150)
Workspace = Annotated[
    str, typer.Option("--workspace", "-w", envvar="CURATE_WORKSPACE", help="Folder or URL (s3://…) of all outputs.")
]


def opened(workspace: str) -> Storage:
    """An existing workspace."""
    if not workspace:
        raise missing()
    return open_workspace(workspace, create=False)


def missing() -> RecipeError:
    return RecipeError("--workspace is missing; give a folder or URL, or set CURATE_WORKSPACE")


def show_outputs(run: Run) -> None:
    """Where the datasets and reports of a run lie."""
    for output in run.outputs.values():
        place = run.storage.url_of(output["base"])
        if output["base"].startswith("datasets/"):
            out.print(f"dataset  {place}", soft_wrap=True, highlight=False)
        if output["base"].startswith("artifacts/report."):
            out.print(f"report   {place}/index.html", soft_wrap=True, highlight=False)
