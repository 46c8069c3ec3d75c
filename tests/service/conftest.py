"""A database, a service over it, and people, for all tests of the service."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from curate.service.database.database import Database
from curate.service.database.migrate import migrate
from curate.service.policy.sandbox import Sandbox
from curate.service.service import Service
from curate.service.settings import Limits, Settings
from tests.servers.postgres import Postgres
from tests.service.curated import curated, toy_workspace
from tests.service.people import People
from tests.service.people import people as made_people

__all__ = ["curated", "toy_workspace"]


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database without rows, to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "migrated.db"
    with closing(Database(f"sqlite:///{path}")) as database:
        migrate(database)
    return path


@pytest.fixture
def sqlite(migrated_file: Path, tmp_path: Path) -> Iterator[Database]:
    """A new database."""
    path = tmp_path / "service.db"
    shutil.copy(migrated_file, path)
    with closing(Database(f"sqlite:///{path}")) as database:
        yield database


@pytest.fixture
def postgresql(postgres: Postgres) -> Iterator[Database]:
    """A new database."""
    with postgres.database() as database:
        yield database


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Database:
    """A new database of each kind, for what depends on it. Tests of what does not use `sqlite` or `service`."""
    if request.param == "sqlite":
        found: Database = request.getfixturevalue("sqlite")
    else:
        found = request.getfixturevalue("postgresql")
    return found


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """With the default limits, after its first answer. Its warm process takes a second to start, so tests share it."""
    with closing(Sandbox(Limits())) as made:
        made.ops()
        yield made


@pytest.fixture
def service(sqlite: Database) -> Iterator[Service]:
    """On SQLite, with nothing under way."""
    yield from _service(sqlite)


@pytest.fixture
def each_service(database: Database) -> Iterator[Service]:
    """On either database."""
    yield from _service(database)


@pytest.fixture
def people(service: Service, tmp_path: Path) -> People:
    """viewer, operator, keeper, admin and stranger, with tokens; workspace `main` in tmp_path / "workspace"."""
    return made_people(service, str(tmp_path / "workspace"))


def _service(database: Database) -> Iterator[Service]:
    url = database.url.render_as_string(hide_password=False)
    made = Service.of(Settings(database=url, url="http://testserver"))
    made.database.close()
    made.database = database
    yield made
    made.close()
