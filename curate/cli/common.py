"""Shared by the commands: the console, common options, and opening a workspace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from curate.core.errors import CurateError, RecipeError, some

if TYPE_CHECKING:
    from curate.api import Run, Workspace

out = Console(width=None if sys.stdout.isatty() else 150)
WorkspaceUrl = Annotated[
    str, typer.Option("--workspace", "-w", envvar="CURATE_WORKSPACE", help="Folder or URL (s3://…) of all outputs.")
]
ServerName = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="CURATE_SERVER",
        help="URL of a service, or its name from `curate login`; --workspace is then a workspace's name there.",
    ),
]
OneRun = Annotated[str, typer.Argument(metavar="RUN", help="Run id.")]
RunId = Annotated[str | None, typer.Argument(help="Run id (default: the latest run).")]
Known = Annotated[bool, typer.Option("--known", help="Some entries may be unknown: exit with 0, not 4.")]
Columns = Annotated[list[str] | None, typer.Option(help="Columns of any stages, separated by commas.")]


def opened(url: str) -> Workspace:
    """A workspace, existing or not. Imported here because commands that only describe stages do not need it."""
    from curate.api import Workspace

    if not url:
        raise RecipeError("--workspace is missing; give a folder or URL, or set CURATE_WORKSPACE")
    return Workspace(url)


@contextmanager
def served(command: str) -> Iterator[None]:
    """Around an import of the service, whose packages may be missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package == "curate":
            raise
        raise CurateError(f"{command}: the package {package} is missing; install curate[service]") from None


def listed(columns: list[str] | None) -> list[str]:
    """The names in values of `Columns`."""
    return [name.strip() for several in columns or () for name in several.split(",") if name.strip()]


def end_unknown(unknown: list[str], known: bool, as_json: bool = False) -> None:
    """After what was done for other entries: name those that the workspace does not know, and exit with 4."""
    if unknown and not as_json:
        line = f"unknown, in no pool or dataset: {some(unknown)}{'' if known else '; check them, or add --known'}"
        out.print(line, highlight=False, soft_wrap=True, markup=False)
    if unknown and not known:
        raise typer.Exit(4)


def show_outputs(run: Run) -> None:
    """Print the URLs of a run's datasets and reports, and how its selection compares with a random sample."""
    for kind, url in run.products():
        out.print(f"{kind:8} {url}", soft_wrap=True, highlight=False)
    for found in run.balance():
        for kind, text in (("balance", found["verdict"]), *(("warning", text) for text in found["warnings"])):
            out.print(f"{kind:8} {text}", soft_wrap=True, highlight=False, markup=False)
