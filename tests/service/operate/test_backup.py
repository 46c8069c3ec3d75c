"""A backup while the service writes, and what a service that is started from it knows."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import func, select

from curate.core.errors import InputError, RecipeError
from curate.service.auth import tokens
from curate.service.database.backup import backup
from curate.service.database.database import Database
from curate.service.database.migrate import heads, migrate, prepare
from curate.service.database.models import AuditEntry, IndexedDataset, Submission, Tag, User
from curate.service.reconcile.index import reindex
from curate.service.service import Service
from curate.service.settings import Settings
from tests.service.curated import Curated
from tests.service.people import People


def opened(path: Path) -> Database:
    return Database(f"sqlite:///{path}")


def test_a_backup_beside_writers_is_one_state_and_delays_none(service: Service, tmp_path: Path) -> None:
    stop, wrote = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        number = 0
        try:
            while not stop.is_set():
                number += 1
                with service.database.write() as session:  # always two users more
                    session.add_all([User(name=f"{side}{number}", created=1.0) for side in "ab"])
                wrote.set()
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert wrote.wait(60)
        size = backup(service.database, tmp_path / "backup.db")
    finally:
        stop.set()
        thread.join(60)
    assert failures == []
    with closing(sqlite3.connect(tmp_path / "backup.db")) as copy:
        (count,) = copy.execute("select count(*) from users").fetchone()
        assert count >= 2 and count % 2 == 0
    found = (tmp_path / "backup.db").stat()
    assert (found.st_size, found.st_mode & 0o777) == (size, 0o600)
    assert [name for name in os.listdir(tmp_path) if "backup" in name] == ["backup.db"]


def test_a_restored_service_knows_people_runs_and_tags(
    service: Service, people: People, curated: Curated, tmp_path: Path
) -> None:
    with service.database.write() as session:
        session.add(
            Submission(
                id="first", workspace_id=people.workspace.id, target_id=people.target.id,
                user_id=people.operator.principal.user_id, recipe="{}", resolved="{}", created=1.0, state="done",
                since=1.0, queued=1.0,
            )
        )  # fmt: skip
        session.add(
            Tag(workspace_id=people.workspace.id, name="toys", tag="good", base=curated.base, time=1.0, user="x")
        )
        session.query(IndexedDataset).delete()
    file = tmp_path / "backup.db"
    backup(service.database, file)
    with service.database.write() as session:  # lost with the machine
        session.query(AuditEntry).delete()
        session.query(Submission).delete()
    restored = Service.of(Settings(database=f"sqlite:///{file}"))
    try:
        prepare(restored.database)
        with restored.database.read() as session:
            found = tokens.verified(session, people.operator.token, restored.clock())
            assert found.principal().user == "operator"
            assert session.scalar(select(Submission.state)) == "done"
            assert session.scalar(select(Tag.base)) == curated.base
        reindex(restored)
        with restored.database.read() as session:
            assert session.scalar(select(IndexedDataset.base)) == curated.base
    finally:
        restored.close()


@pytest.mark.parametrize("head", heads())
def test_an_upgrade_of_a_backup_keeps_its_rows(tmp_path: Path, head: str) -> None:
    """Stop, back up, install, migrate, start."""
    file = tmp_path / "old.db"
    with closing(opened(file)) as old:
        migrate(old, head)
        with old.engine.begin() as connection:
            connection.exec_driver_sql("insert into users (name, created) values ('old', 1.0)")
        backup(old, tmp_path / "backup.db")
    with closing(opened(tmp_path / "backup.db")) as database:
        if head != heads()[-1]:
            with pytest.raises(RecipeError, match="curate service migrate"):
                prepare(database)
        migrate(database)
        prepare(database)
        with database.read() as session:
            assert session.scalar(select(func.count()).select_from(User)) == 1


def test_a_backup_never_overwrites_and_says_what_is_wrong(service: Service, tmp_path: Path) -> None:
    (tmp_path / "there.db").write_text("precious")
    with pytest.raises(InputError, match="already exists"):
        backup(service.database, tmp_path / "there.db")
    assert (tmp_path / "there.db").read_text() == "precious"
    with pytest.raises(InputError, match="No such file or directory"):
        backup(service.database, tmp_path / "no" / "folder.db")
    with closing(opened(tmp_path / "none.db")) as missing, pytest.raises(InputError, match="not found"):
        backup(missing, tmp_path / "new.db")
    assert not (tmp_path / "none.db").exists()
    with (
        closing(Database("postgresql://curate@localhost/curate")) as other,
        pytest.raises(RecipeError, match="pg_dump"),
    ):
        backup(other, tmp_path / "new.db")
    assert sorted(path.name for path in tmp_path.iterdir() if "new" in path.name or path.name[0] == ".") == []
