"""`curate view`: look at a workspace in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from curate.cli.common import WorkspaceUrl, opened, served

view = typer.Typer()


@view.command("view")
def show(
    workspace: WorkspaceUrl = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; 0: any free one.")] = 8090,
    browser: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
) -> None:
    """Show the runs, samples and datasets of a workspace in a browser, until Ctrl-C. Without accounts: everyone who can
    open a port of this machine can look, tag datasets and exclude samples."""
    url = opened(workspace).url
    with served("view"):
        from curate.service.view import View
    View(url, port, browser).serve()
