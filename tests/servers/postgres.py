"""A PostgreSQL for tests: one server per test run, and a new database, already migrated, for each test."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.engine import URL

from curate.service.database.database import Database
from curate.service.database.migrate import migrate

START_SECONDS = 120.0
QUICK = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=16MB",
    "autovacuum=off",
    "deadlock_timeout=100ms",
)


def folder() -> Path | None:
    """Where its programs are: on PATH, or where Debian puts them."""
    found = shutil.which("initdb")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return Path(found).parent if found else installed[-1].parent if installed else None


class Postgres:
    """Its databases. A socket in the server's folder leads to it, no port."""

    def __init__(self, sockets: Path) -> None:
        self._sockets = sockets
        self._numbers = itertools.count()
        self.empty("migrated")
        with contextlib.closing(Database(self.url("migrated"))) as database:
            migrate(database)

    def url(self, name: str) -> URL:
        return URL.create("postgresql", "tester", database=name, query={"host": str(self._sockets)})

    def empty(self, name: str = "", template: str = "template0") -> URL:
        """A new database."""
        name = name or f"test_{next(self._numbers)}"
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" ENCODING UTF8')
        return self.url(name)

    @contextlib.contextmanager
    def database(self) -> Iterator[Database]:
        """A new, migrated one, dropped afterwards."""
        url = self.empty(template="migrated")
        database = Database(url)
        try:
            yield database
        finally:
            database.close()
            self._execute(f'DROP DATABASE "{url.database}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        with psycopg.connect(host=str(self._sockets), user="tester", dbname="postgres", autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]


@contextlib.contextmanager
def started() -> Iterator[Postgres]:
    programs = folder()
    assert programs is not None
    place = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # sockets' paths must be short
    owner: dict[str, Any] = {"cwd": place}
    if os.geteuid() == 0:  # PostgreSQL does not run as root
        nobody = pwd.getpwnam("nobody")
        os.chown(place, nobody.pw_uid, nobody.pw_gid)
        owner |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    try:
        words = [programs / "initdb", f"--pgdata={place}/data", "--username=tester", "--auth=trust", "--no-sync"]
        subprocess.run([*words, "--encoding=UTF8", "--locale=C"], check=True, capture_output=True, **owner)
        with _running(programs / "postgres", place, owner):
            yield Postgres(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _running(program: Path, place: Path, owner: dict[str, Any]) -> Iterator[None]:
    settings = [f"-c{one}" for one in (*QUICK, "listen_addresses=", f"unix_socket_directories={place}")]
    with (place / "log").open("wb") as log:
        server = subprocess.Popen([program, "-D", place / "data", *settings], stdout=log, stderr=log, **owner)
    try:
        _wait(place, server)
        yield
    finally:
        server.send_signal(signal.SIGINT)  # ends connections, then itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(60)
        server.kill()
        server.wait()


def _wait(place: Path, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(host=str(place), user="tester", dbname="postgres").close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"PostgreSQL did not start: {(place / 'log').read_text()[-500:]}")
