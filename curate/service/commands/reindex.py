"""`curate service reindex`."""

from __future__ import annotations

from typing import Annotated

import typer

from curate.service.commands.common import Config, opened
from curate.service.reconcile.index import reindex as rebuilt


def reindex(
    workspace: Annotated[str | None, typer.Argument(help="Name of a workspace (default: all).")] = None,
    config: Config = None,
) -> None:
    """Rebuild the lists of runs and datasets from the workspaces. The service may run meanwhile."""
    with opened(config) as service:
        for name, found in rebuilt(service, workspace).items():
            typer.echo(f"{name}: {found.runs:,} runs, {found.datasets:,} datasets")
