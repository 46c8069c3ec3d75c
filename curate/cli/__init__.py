"""`curate`: submit pipelines, and ask what they did. Every error a user can cause is one line on stderr."""

from __future__ import annotations

import os
import sys

import typer

from curate.cli.cluster import cluster
from curate.cli.data import data
from curate.cli.runs import runs
from curate.cli.stages import stages
from curate.cli.submit import submit
from curate.cli.text import text
from curate.core.errors import CurateError, DrainedError

app = typer.Typer(
    help="Curate image pools into balanced training sets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(submit)
app.add_typer(runs)
app.add_typer(stages)
app.add_typer(data)
app.add_typer(cluster, name="cluster")
app.add_typer(text, name="text")


def main() -> None:
    before = hanging()
    try:
        app()
    except DrainedError as error:
        print(f"curate: {error}", file=sys.stderr)
        end(143, before)
    except CurateError as error:
        print(f"curate: {error}", file=sys.stderr)
        end(1, before)
    except SystemExit as exit:
        end(exit.code if isinstance(exit.code, int) else 0, before)


def hanging() -> int:
    """Threads of this process that hang and that nothing can end."""
    api = sys.modules.get("curate.api")
    return api.abandoned() if api is not None else 0


def end(code: int, before: int) -> None:
    """Leave, at once where this command has left a thread that hangs."""
    if hanging() > before:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
