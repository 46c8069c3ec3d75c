"""`curate`: submit pipelines and inspect their results. Every user error is one line on stderr."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from curate import __version__
from curate.cli.caption import caption
from curate.cli.cluster import cluster
from curate.cli.common import served
from curate.cli.data import data
from curate.cli.encoders import encoders
from curate.cli.release import release
from curate.cli.runs import runs
from curate.cli.servers import servers
from curate.cli.stages import stages
from curate.cli.submit import submit
from curate.cli.takedown import takedowns
from curate.cli.text import text
from curate.cli.verbs import verbs
from curate.cli.view import view
from curate.core.errors import CeilingError, CurateError, DrainedError

STATUSES = {CeilingError: 3, DrainedError: 143, CurateError: 1}
"""Exit status by error; typer's own is 2, for a command line that is wrong, and that of `end_unknown` 4."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"curate {__version__}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(submit)
app.add_typer(verbs)
app.add_typer(runs)
app.add_typer(servers)
app.add_typer(stages)
app.add_typer(data)
app.add_typer(release)
app.add_typer(takedowns)
app.add_typer(view)
app.add_typer(cluster, name="cluster")
app.add_typer(encoders, name="encoders")
app.add_typer(text, name="text")
app.add_typer(caption, name="caption")


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def service(context: typer.Context) -> None:
    """Operate the service: init, serve, migrate, user, token, backup, reindex (`curate service --help`)."""
    with served("service"):
        from curate.service.commands import app as commands  # SQLAlchemy and FastAPI take a second
    raise typer.Exit(commands(context.args, prog_name="curate service", standalone_mode=False) or 0)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Show the version and exit.", callback=_show_version)
    ] = False,
) -> None:
    """Curate image pools into balanced training sets."""


def main() -> None:
    before = hanging()
    try:
        app()
    except CurateError as error:
        print(f"curate: {error}", file=sys.stderr)
        end(next(status for kind, status in STATUSES.items() if isinstance(error, kind)), before)
    except SystemExit as exit:
        end(exit.code if isinstance(exit.code, int) else 0, before)


def hanging() -> int:
    """Number of threads of this process that hang and cannot be ended."""
    api = sys.modules.get("curate.api")
    return api.abandoned() if api is not None else 0


def end(code: int, before: int) -> None:
    """Exit; immediately if this command left a thread that hangs."""
    if hanging() > before:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
