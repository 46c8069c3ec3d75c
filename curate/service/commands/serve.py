"""`curate service serve`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from curate.core.errors import RecipeError
from curate.service.commands.common import Config, opened


def serve(
    config: Config = None,
    embedded: Annotated[
        str | None,
        typer.Option(metavar="WORKSPACE", help="All on this machine, for one workspace: SQLite and a local Ray."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --embedded; 0: any free one.")] = 8080,
    host: Annotated[str, typer.Option(help="With --embedded: address to listen on.")] = "127.0.0.1",
    state: Annotated[
        Path | None, typer.Option(help="With --embedded: folder of the database (default: WORKSPACE-service).")
    ] = None,
    recipes: Annotated[
        list[Path] | None, typer.Option(help="With --embedded: folder of recipes to offer; may be repeated.")
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="With --embedded: folder that recipes may read; may be repeated."),
    ] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="With --embedded: CPUs of the local Ray.")] = None,
) -> None:
    """Serve the API and the pages, and reconcile runs. Several processes with one database are replicas."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level="WARNING")
    logging.getLogger("curate").setLevel(logging.INFO)
    if embedded is None:
        _configured(config)
        return
    from curate.service.embedded import Embedded

    logging.getLogger("curate.audit").setLevel(logging.WARNING)  # a terminal shows the URL; the page shows the audit
    roots = dict(map(_root, root or []))
    Embedded(embedded, host, port, state, recipes or [], roots, cpus=cpus).serve()


def _configured(config: Path | None) -> None:
    from curate.service.serving import listening, serve, url_of

    with opened(config) as service:
        settings = service.settings
        bound = listening(settings.host, settings.port)
        reached = settings.url if settings.port else url_of(bound)
        serve(service, bound, lambda: typer.echo(f"url: {reached}"))


def _root(text: str) -> tuple[str, str]:
    name, mark, folder = text.partition("=")
    if not mark or not name or not folder:
        raise RecipeError(f"--root {text}: expected NAME=FOLDER, such as images=/data/images")
    return name, folder
