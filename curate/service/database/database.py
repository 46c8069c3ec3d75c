"""Connections. Sync, in threads: SQLite's async drivers deadlock under background work.

with database.read() as session:  ...        # several SELECTs see one state
with database.write() as session: ...        # committed at the end, rolled back on an exception
database.commit(function)                    # the same for function(session), repeated after a deadlock

SQLite has one writer at a time. PostgreSQL has several, at READ COMMITTED, so an UPDATE compares the version that was
read. Where a rule spans several rows, the writers of `write("people")` take turns.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, Update, create_engine, event, text, update
from sqlalchemy.engine import URL, CursorResult, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool
from tenacity import retry, retry_if_exception_message, stop_after_delay, wait_random

from curate.core.errors import RecipeError
from curate.core.secrets import redact
from curate.service.problems import ChangedProblem, ConflictProblem, InvalidProblem, UnavailableProblem
from curate.service.settings import Settings

BUSY_SECONDS = 15
"""How long a writer waits for the one before it."""
STATEMENT_SECONDS = 30
CONNECT_SECONDS = 5
CONNECTIONS = 20
REPEATS = 3
REPEATED = {"40001", "40P01"}
"""PostgreSQL's codes of a serialization failure and a deadlock: the same transaction may succeed."""
DIALECTS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgresql+psycopg": "postgresql+psycopg"}
EXPECTED = "expected sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME"

T = TypeVar("T")


class Database:
    """The service's database. Thread-safe."""

    def __init__(self, url: str | URL) -> None:
        self.url = _checked(url)
        self.sqlite = self.url.drivername == "sqlite"
        self.engine = self._engine(_sqlite_connected if self.sqlite else _postgresql_connected)
        modes = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._reading = self._engine(_sqlite_reading) if self.sqlite else self.engine.execution_options(**modes)
        self._engines = [self.engine, self._reading] if self.sqlite else [self.engine]
        self._writing = threading.local()

    @classmethod
    def of(cls, settings: Settings) -> Database:
        url = _checked(settings.database)
        if settings.database_password is not None:
            url = url.set(password=settings.database_password.value())
        return cls(url)

    def _engine(self, connected: Callable[[Any, Any], None]) -> Engine:
        seconds = BUSY_SECONDS if self.sqlite else CONNECT_SECONDS
        arguments: dict[str, Any] = {"timeout" if self.sqlite else "connect_timeout": seconds}
        if self.sqlite:
            arguments["check_same_thread"] = False
        engine = create_engine(
            self.url,
            connect_args=arguments,
            hide_parameters=True,
            max_overflow=CONNECTIONS,
            pool_pre_ping=not self.sqlite,
            pool_size=CONNECTIONS,
            pool_timeout=10,
            poolclass=QueuePool,
        )
        event.listen(engine, "connect", connected)
        event.listen(engine, "handle_error", _translate)
        return engine

    def on_error(self, listener: Callable[[ExceptionContext], None]) -> None:
        """Call it with every error of a statement or connection."""
        for engine in self._engines:
            event.listen(engine, "handle_error", listener)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Raises UnavailableProblem if the database does not answer, or for a write in the block."""
        with problems(), Session(self._reading, expire_on_commit=False) as session, session.begin():
            if self.sqlite:
                session.connection().exec_driver_sql("BEGIN")
            yield session

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Like `read`, for statements that select columns: without a session they cost a fraction."""
        with problems(), self._reading.connect() as connection:
            if self.sqlite:
                connection.exec_driver_sql("BEGIN")
            yield connection

    @contextmanager
    def write(self, alone: str = "") -> Iterator[Session]:
        """Raises UnavailableProblem if the database does not answer or cannot be written, and ConflictProblem if
        a constraint failed and the block did not handle it. `alone`: writers of the same name take turns."""
        assert not getattr(self._writing, "now", False), "a write within a write waits for itself"
        self._writing.now = True
        try:
            with problems(), Session(self.engine, expire_on_commit=False) as session, session.begin():
                if self.sqlite:  # BEGIN alone fails at the first write if another process has written since
                    session.execute(text("BEGIN IMMEDIATE"))
                elif alone:
                    session.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": alone})
                yield session
        finally:
            self._writing.now = False

    def commit(self, function: Callable[[Session], T], alone: str = "") -> T:
        """`function` in a transaction. It is called again after a deadlock, so it must only use the session."""
        for _ in range(REPEATS - 1):
            try:
                with self.write(alone) as session:
                    return function(session)
            except UnavailableProblem as problem:
                if getattr(getattr(problem.__cause__, "orig", None), "sqlstate", None) not in REPEATED:
                    raise
        with self.write(alone) as session:
            return function(session)

    def check_place(self) -> None:
        """Raises RecipeError if SQLite's file cannot be written. Makes a new file that only its owner can read."""
        if not self.sqlite:
            return
        path = Path(self.url.database or "")
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise RecipeError(
                f"database: {path}: cannot be written ({error.strerror}); expected a file in an existing folder"
            ) from None
        if not os.access(path.parent, os.W_OK):
            raise RecipeError(f"database: {path.parent}: SQLite writes files next to {path.name}; make it writable")

    def close(self) -> None:
        for engine in self._engines:
            engine.dispose()


def swapped(session: Session, row: Any, **values: Any) -> bool:
    """Change a row whose table counts versions. Whether it still had the version that was read; otherwise it is
    unchanged."""
    table = type(row)
    same = update(table).where(table.id == row.id, table.version == row.version)
    return executed(session, same.values(version=row.version + 1, **values))


def executed(session: Session, statement: Update) -> bool:
    """Whether an UPDATE found its row."""
    options = {"synchronize_session": False}
    return cast("CursorResult[Any]", session.execute(statement, execution_options=options)).rowcount == 1


def check_version(name: str, version: int, if_match: int | None) -> None:
    """Raises ChangedProblem if they have seen another version."""
    if if_match is not None and if_match != version:
        raise ChangedProblem(f"{name}: has version {version}, not {if_match}; read it again before changing it")


@contextmanager
def problems() -> Iterator[None]:
    """The database's errors as problems."""
    try:
        yield
    except IntegrityError as error:
        raise ConflictProblem("another request has just made the same change; reload, then repeat") from error
    except DataError as error:
        raise InvalidProblem(
            f"a value cannot be stored ({said(error)}); expected plain text and small numbers"
        ) from error
    except (DBAPIError, PoolTimeoutError) as error:
        raise UnavailableProblem(f"the database does not take the request ({said(error)}); try again later") from error


def said(error: BaseException) -> str:
    """The database's own words, in one line, without statement, parameters and secrets."""
    text_ = str(getattr(error, "orig", None) or error)
    return redact(" ".join(text_.split()))[:200]


def _translate(context: ExceptionContext) -> None:
    """Numbers beyond 64 bits and text that is not Unicode fail before the database sees them."""
    if isinstance(context.original_exception, (OverflowError, UnicodeError)):
        raise InvalidProblem("a value cannot be stored; expected Unicode text and numbers of at most 64 bits")


def _checked(url: str | URL) -> URL:
    try:
        made = make_url(url)
    except (ArgumentError, SQLAlchemyError, ValueError):
        raise RecipeError(f"database: not a URL; {EXPECTED}") from None
    if made.drivername not in DIALECTS:
        raise RecipeError(f"database: {made.drivername}: {EXPECTED}")
    if made.drivername == "sqlite" and made.database in (None, "", ":memory:"):
        raise RecipeError(
            f"database: {made.render_as_string()}: a database in memory ends with its connection; {EXPECTED}"
        )
    return made.set(drivername=DIALECTS[made.drivername])


def _sqlite_connected(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves
    _write_ahead(connection)
    for pragma in ("synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


@retry(
    retry=retry_if_exception_message(match="database is locked"),
    wait=wait_random(0, 0.05),
    stop=stop_after_delay(BUSY_SECONDS),
    reraise=True,
)
def _write_ahead(connection: sqlite3.Connection) -> None:
    """SQLite's busy timeout does not cover this change: of connections that open a new file at once, some fail."""
    connection.execute("PRAGMA journal_mode=WAL")


def _sqlite_reading(connection: sqlite3.Connection, record: Any) -> None:
    _sqlite_connected(connection, record)
    connection.execute("PRAGMA query_only=ON")


def _postgresql_connected(connection: Any, _: Any) -> None:
    """Waiting is bounded, and the locks of a vanished replica are released."""
    limits = {
        "lock": BUSY_SECONDS,
        "statement": STATEMENT_SECONDS,
        "idle_in_transaction_session": 2 * STATEMENT_SECONDS,
    }
    connection.autocommit = True
    for name, seconds in limits.items():
        connection.execute(f"SET {name}_timeout = '{seconds}s'")
    connection.autocommit = False
