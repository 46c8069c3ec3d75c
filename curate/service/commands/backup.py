"""`curate service backup`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from curate.service.commands.common import Config, settings_of
from curate.service.database.database import Database
from curate.service.operate.backup import backup as written


def backup(file: Annotated[Path, typer.Argument(help="A new file.")], config: Config = None) -> None:
    """Copy the SQLite database into a new file. The service may run meanwhile. For PostgreSQL use pg_dump."""
    with closing(Database.of(settings_of(config))) as database:
        size = written(database, file)
    typer.echo(f"{file}: {size:,} bytes")
