"""Each earlier release's tables, with rows in them, become those of the models, on both databases."""

from __future__ import annotations

import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Boolean, Float, Integer, MetaData, Table, func, insert, select, text

from curate.core.errors import RecipeError
from curate.service.database import migrate as module
from curate.service.database.database import Database
from curate.service.database.migrate import current, differences, heads, migrate, prepare
from curate.service.database.models import Base
from tests.servers.postgres import Postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A database without tables."""
    if request.param == "sqlite":
        url: Any = f"sqlite:///{tmp_path}/empty.db"
    else:
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.empty()
    with closing(Database(url)) as database:
        yield database


def fill(database: Database) -> dict[str, int]:
    """Two rows in each table, the second one referring to the second; the number of rows of each."""
    metadata = MetaData()
    metadata.reflect(database.engine)
    tables = [table for table in metadata.sorted_tables if table.name != "alembic_version"]
    with database.engine.connect() as connection:
        if database.sqlite:
            connection.execute(text("BEGIN"))
        for table in tables:
            for number in (1, 2):
                connection.execute(insert(table).values(row(table, number)))
        connection.commit()
    return {table.name: 2 for table in tables}


def row(table: Table, number: int) -> dict[str, Any]:
    def value(kind: Any) -> Any:
        if isinstance(kind, JSON):
            return {"number": number}
        if isinstance(kind, Boolean):
            return True
        return float(number) if isinstance(kind, Float) else number if isinstance(kind, Integer) else str(number)

    return {column.name: value(column.type) for column in table.columns}


def counts(database: Database) -> dict[str, int]:
    metadata = MetaData()
    metadata.reflect(database.engine)
    with database.engine.connect() as connection:
        return {
            table.name: connection.scalar(select(func.count()).select_from(table)) or 0
            for table in metadata.sorted_tables
            if table.name != "alembic_version"
        }


@pytest.mark.parametrize("revision", heads())
def test_rows_of_each_release_are_kept(empty: Database, revision: str) -> None:
    migrate(empty, to=revision)
    assert current(empty) == revision
    before = fill(empty)
    assert migrate(empty) == heads()[heads().index(revision) + 1 :]
    assert counts(empty) == {name: rows for name, rows in before.items() if name != "replies"}
    assert differences(empty) == []


def test_an_empty_database_gets_the_tables_of_the_models(empty: Database) -> None:
    assert current(empty) is None
    assert migrate(empty) == heads()
    assert differences(empty) == []
    assert migrate(empty) == []
    assert counts(empty).keys() == Base.metadata.tables.keys()


def test_replicas_that_start_at_once_migrate_once(empty: Database) -> None:
    def one(_: int) -> list[str]:
        with closing(Database(empty.url)) as database:
            return migrate(database)

    with ThreadPoolExecutor(4) as pool:
        done = sorted(pool.map(one, range(4)))
    assert done == [[], [], [], heads()]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A release with one more migration, which rebuilds a table that others refer to."""
    folder = tmp_path / "migrations"
    for file in module.FOLDER.rglob("*.py"):
        copy = folder / file.relative_to(module.FOLDER)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text())
    made = folder / "versions/9999_later.py"
    made.write_text(
        textwrap.dedent(
            f"""
            import sqlalchemy as sa
            from alembic import op

            revision = "9999"
            down_revision = {heads()[-1]!r}

            def upgrade():
                recreate = "always" if op.get_bind().dialect.name == "sqlite" else "auto"
                with op.batch_alter_table("users", recreate=recreate) as batch:
                    batch.add_column(sa.Column("email", sa.String(10), nullable=True))
            """
        )
    )
    monkeypatch.setattr(module, "FOLDER", folder)
    return made


def test_rebuilding_a_table_keeps_the_rows_that_refer_to_it(empty: Database, later: Path) -> None:
    migrate(empty, to=heads()[-2])
    before = fill(empty)
    assert migrate(empty) == ["9999"]
    assert counts(empty) == before


def test_a_failed_migration_changes_nothing(empty: Database, later: Path) -> None:
    later.write_text(later.read_text() + "    raise RuntimeError\n")
    with pytest.raises(RuntimeError):
        migrate(empty)
    assert current(empty) is None
    assert counts(empty) == {}
    later.write_text(later.read_text().replace("raise RuntimeError", "pass"))
    assert migrate(empty)[-1] == "9999"


def test_a_service_does_not_start_on_old_or_newer_tables(
    empty: Database, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(empty, to=heads()[-2])
    with pytest.raises(RecipeError, match="run `curate service migrate`"):
        prepare(empty)
    migrate(empty)
    prepare(empty)
    monkeypatch.undo()
    for function in (prepare, migrate):
        with pytest.raises(RecipeError, match="a newer release has migrated it to 9999"):
            function(empty)


def test_only_a_new_file_of_sqlite_is_made_by_starting(empty: Database) -> None:
    if empty.sqlite:
        prepare(empty)
        assert differences(empty) == []
        assert Path(empty.url.database or "").stat().st_mode & 0o777 == 0o600
    else:
        with pytest.raises(RecipeError, match="run `curate service init`"):
            prepare(empty)


def test_a_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/other.db")) as database:
        with database.write() as session:
            session.execute(text("CREATE TABLE other (id INTEGER)"))
        with pytest.raises(RecipeError, match="no tables yet"):
            prepare(database)
        assert counts(database) == {"other": 0}
