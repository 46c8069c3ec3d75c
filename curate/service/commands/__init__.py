"""`curate service …`: commands for operators, on the service's machine."""

from __future__ import annotations

import typer

from curate.service.commands.backup import backup
from curate.service.commands.people import token, user
from curate.service.commands.reindex import reindex
from curate.service.commands.serve import serve
from curate.service.commands.tables import init, migrate

app = typer.Typer(
    help="Operate the service: its database, its first people, and the server itself.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (init, serve, migrate, user, token, backup, reindex):
    app.command()(command)
