"""`curate service init` and `curate service migrate`."""

from __future__ import annotations

from contextlib import closing

import typer

from curate.service.auth.first import first_token
from curate.service.commands.common import Config, settings_of
from curate.service.database.migrate import migrate as migrated
from curate.service.service import Service


def init(config: Config = None) -> None:
    """Create the database and the user `admin`, and print the first token. It is shown only once."""
    with closing(Service.of(settings_of(config))) as service:
        migrated(service.database)
        made = first_token(service)
        typer.echo(f"database: {service.database.url.render_as_string()}")
    if made is None:
        typer.echo("the database has users already; `curate service token USER` makes a token")
    else:
        typer.echo(f"token: {made}")


def migrate(config: Config = None) -> None:
    """Change the database's tables to those of this release. Stop the service and back up the database first."""
    with closing(Service.of(settings_of(config))) as service:
        done = migrated(service.database)
    typer.echo(f"migrated: {', '.join(done)}" if done else "the database is up to date")
