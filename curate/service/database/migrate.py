"""Bring a database to the tables of this release.

All migrations run in one transaction, and replicas that start at once take turns: one migrates, the others find nothing
to do. A migration that fails changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from curate.core.errors import RecipeError
from curate.service.database.database import Database, problems
from curate.service.database.models import Base

FOLDER = Path(__file__).parent / "migrations"
LOCK = 0x63757261
"""Key of PostgreSQL's advisory lock for migrations: "cura"."""

log = logging.getLogger(__name__)


def heads() -> list[str]:
    """Revisions from the first to the newest."""
    return [script.revision for script in reversed(list(ScriptDirectory.from_config(_config()).walk_revisions()))]


def current(database: Database) -> str | None:
    """Revision of a database; None if it has no tables."""
    with problems(), database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def migrate(database: Database, to: str = "head") -> list[str]:
    """Apply what is missing, and return it."""
    database.check_place()
    with _alone(database) as connection:
        before = MigrationContext.configure(connection).get_current_revision()
        _known(before)
        command.upgrade(_config(connection), to)
        after = MigrationContext.configure(connection).get_current_revision()
    done = heads()
    done = done[done.index(before) + 1 if before else 0 : done.index(after) + 1 if after else 0]
    for revision in done:
        log.info("database: migrated to %s", revision)
    return done


def prepare(database: Database) -> None:
    """Before the service starts: make a new SQLite file. Raises RecipeError if a database needs to be migrated."""
    database.check_place()
    found = current(database)
    _known(found)
    if found == heads()[-1]:
        return
    if found is None and database.sqlite and _empty(database):
        migrate(database)
        return
    raise RecipeError(
        "database: it has no tables yet; run `curate service init`"
        if found is None
        else f"database: its tables are those of {found}, and this release needs {heads()[-1]}; "
        "back it up, then run `curate service migrate`"
    )


def differences(database: Database) -> list[str]:
    """How the tables differ from the models; none after `migrate`."""
    with problems(), database.engine.connect() as connection:
        return [str(one) for one in compare_metadata(MigrationContext.configure(connection), Base.metadata)]


def draft(database: Database, message: str) -> str:
    """Write the migration that leads from the newest one to the models, and return its path."""
    migrate(database)
    number = len(heads()) + 1
    words = "_".join(message.lower().split())
    with database.engine.connect() as connection:
        config = _config(connection)
        config.set_main_option("file_template", f"{number:04d}_{words}")
        made = command.revision(config, message, autogenerate=True, rev_id=f"{number:04d}")
    assert not isinstance(made, list) and made is not None
    return str(made.path)


def _known(revision: str | None) -> None:
    if revision is not None and revision not in heads():
        raise RecipeError(f"database: a newer release has migrated it to {revision}; install that release")


def _empty(database: Database) -> bool:
    with problems(), database.engine.connect() as connection:
        return not inspect(connection).get_table_names()


@contextmanager
def _alone(database: Database) -> Iterator[Connection]:
    """A transaction that no other migration and, on SQLite, no other writer runs beside."""
    with problems(), database.engine.connect() as connection:
        if not database.sqlite:
            with connection.begin():
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                connection.execute(text("SET LOCAL lock_timeout = '600s'"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
                yield connection
            return
        connection.detach()  # closed afterwards, because it does not check references
        # Copying a table drops it, which would delete the rows that refer to it.
        connection.execute(text("PRAGMA foreign_keys=OFF"))
        connection.execute(text("BEGIN IMMEDIATE"))
        yield connection
        if broken := connection.execute(text("PRAGMA foreign_key_check")).first():
            raise RecipeError(f"database: a row of {broken[0]} would refer to nothing; nothing was migrated")
        connection.commit()


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
