"""A consistent copy of a SQLite database that is in use."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from curate.core.errors import InputError, RecipeError
from curate.service.database.database import Database


def backup(database: Database, path: Path) -> int:
    """Write a new file, which only its owner may read, and return its bytes. It has its name once it is complete."""
    if not database.sqlite:
        raise RecipeError(f"backup: the database is {database.url.get_backend_name()}; use pg_dump")
    source = Path(database.url.database or "")
    if not source.is_file():
        raise InputError(f"backup: {source}: not found; name the service's settings with --config")
    if path.exists():
        raise InputError(f"backup: {path}: already exists; name a new file")
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        os.close(os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(aside)) as copy:
            live.backup(copy)  # in one step, which delays no writer: in several, each write would start it again
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
            (found,) = copy.execute("PRAGMA quick_check").fetchone()
        if found != "ok":
            raise InputError(f"backup: {source}: corrupt ({found}); restore an earlier backup")
        _sync(aside)
        os.link(aside, path)  # fails if the name was taken meanwhile
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"backup: {path}: cannot be written ({error}); name a file in an existing folder") from None
    finally:
        aside.unlink(missing_ok=True)
    return path.stat().st_size


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
