"""Transactions, and what a database that does not answer looks like: one line, and nothing half written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import psycopg.errors
import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from curate.core.errors import RecipeError
from curate.service.database import database as module
from curate.service.database.database import Database
from curate.service.database.models import Leader, User
from curate.service.problems import ConflictProblem, InvalidProblem, UnavailableProblem
from curate.service.settings import Settings
from tests.scopes import ROOT


def add(database: Database, name: str) -> None:
    with database.write() as session:
        session.add(User(name=name, created=1.0))


def names(database: Database) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(User.name).order_by(User.name)))


def test_a_write_is_whole_or_nothing(database: Database) -> None:
    add(database, "one")

    def broken(session: Session) -> None:
        session.add(User(name="two", created=1.0))
        session.flush()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.commit(broken)
    assert names(database) == ["one"]


def test_a_read_sees_one_state(database: Database) -> None:
    add(database, "one")
    count = select(func.count()).select_from(User)
    with database.read() as session:
        assert session.scalar(count) == 1
        thread = Thread(target=add, args=(database, "two"))
        thread.start()
        thread.join()
        assert session.scalar(count) == 1
    assert names(database) == ["one", "two"]


def test_a_read_cannot_write(database: Database) -> None:
    with pytest.raises(UnavailableProblem, match=r"read-?only"), database.read() as session:
        session.add(User(name="one", created=1.0))
    add(database, "two")
    assert names(database) == ["two"]


def test_compare_and_swap_has_one_winner(database: Database) -> None:
    with database.write() as session:
        session.add(Leader(name="x", holder="", beat=0))
    together, swapped = Barrier(4), []

    def swap(holder: str) -> None:
        with database.read() as session:
            beat = session.get_one(Leader, "x").beat
        together.wait()
        with database.write() as session:
            done = session.execute(
                update(Leader).where(Leader.name == "x", Leader.beat == beat).values(holder=holder, beat=beat + 1)
            )
            swapped.append(done.rowcount)  # type: ignore[attr-defined]

    threads = [Thread(target=swap, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(swapped) == [0, 0, 0, 1]


def test_writers_wait_for_each_other_where_they_must(database: Database) -> None:
    """Each reads what the other has written, although both began before."""
    together = Barrier(2)

    def count_then_add(name: str) -> None:
        together.wait()
        with database.write("people") as session:
            found = session.scalar(select(func.count()).select_from(User))
            session.add(User(name=f"{name}-{found}", created=1.0))

    threads = [Thread(target=count_then_add, args=("user",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(database) == ["user-0", "user-1"]


def test_the_same_name_twice_is_a_conflict(database: Database) -> None:
    add(database, "one")
    with pytest.raises(ConflictProblem, match="another request"):
        add(database, "one")


@pytest.mark.parametrize("value", ["\ud800", "x" * 65, "a\0b"])
def test_values_that_cannot_be_stored_are_invalid(database: Database, value: str) -> None:
    if database.sqlite and value != "\ud800":  # stores the others as they are
        add(database, value)
        assert names(database) == [value]
        return
    with pytest.raises(InvalidProblem, match="cannot be stored"):
        add(database, value)


def test_numbers_of_more_than_64_bits_are_invalid(database: Database) -> None:
    with pytest.raises(InvalidProblem, match="cannot be stored"), database.read() as session:
        session.scalars(select(User).where(User.id == 1 << 64)).all()


def test_a_write_within_a_write_is_a_bug(database: Database) -> None:
    with database.write(), pytest.raises(AssertionError), database.write():
        pass
    add(database, "one")


def test_a_full_database_says_so_and_recovers(sqlite: Database) -> None:
    add(sqlite, "one")
    with sqlite.engine.connect() as connection:
        pages = connection.execute(text("PRAGMA page_count")).scalar_one()
    limit = [f"PRAGMA max_page_count={pages}"]

    def limited(connection: Any, *_: Any) -> None:
        connection.execute(limit[0])

    module.event.listen(sqlite.engine, "checkout", limited)
    with pytest.raises(UnavailableProblem, match="database or disk is full") as caught:
        add(sqlite, "x" * 100_000)
    assert "\n" not in str(caught.value) and "INSERT" not in str(caught.value)
    assert names(sqlite) == ["one"]
    limit[0] = "PRAGMA max_page_count=1000000"
    add(sqlite, "two")
    assert names(sqlite) == ["one", "two"]


@pytest.mark.long
def test_a_full_disk_says_so_and_recovers(migrated_file: Path, tmp_path: Path) -> None:
    """A file system of 1 MB in a mount namespace, with the same steps as above."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare, to mount a small file system")
    place = tmp_path / "small"
    place.mkdir()
    mount = f"mount -t tmpfs -o size=1m tmpfs {place} && cp {migrated_file} {place}/x.db"
    words = ["unshare", "--mount", "sh", "-c", f"{mount} && exec {sys.executable} -c '{FILL}' {place}"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(
        r"the database does not take the request \((.*full|disk I/O error)\); try again later", lines[0]
    )
    assert lines[1:] == ["['one']", "['one', 'two']"]


FILL = """
import sys
from pathlib import Path
from curate.service.problems import UnavailableProblem
from tests.service.database.test_database import Database, add, names
place = Path(sys.argv[1])
database = Database(f"sqlite:///{place}/x.db")
add(database, "one")
try:
    with (place / "filler").open("wb") as filler:
        while True:
            filler.write(bytes(4096))
            filler.flush()
except OSError:
    pass
try:
    add(database, "x" * 100_000)
except UnavailableProblem as problem:
    print(problem)
print(names(database))
(place / "filler").unlink()
add(database, "two")
print(names(database))
"""


def test_a_locked_database_says_so(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.1)
    locked, done = Event(), Event()

    def hold() -> None:
        with sqlite.write():
            locked.set()
            done.wait(60)

    thread = Thread(target=hold)
    thread.start()
    assert locked.wait(60)
    with closing(Database(sqlite.url)) as impatient, pytest.raises(UnavailableProblem, match="database is locked"):
        add(impatient, "one")
    assert names(sqlite) == []  # readers do not wait
    done.set()
    thread.join()
    add(sqlite, "one")


def test_connections_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    def one(url: str, start: Barrier) -> None:
        with closing(Database(url)) as database:
            start.wait()
            with database.engine.connect() as connection:
                assert connection.scalar(text("PRAGMA journal_mode")) == "wal"

    with ThreadPoolExecutor(4) as pool:
        for number in range(50):  # without waiting for each other, about 1 in 70 fails
            together = Barrier(4)
            list(pool.map(one, [f"sqlite:///{tmp_path}/{number}.db"] * 4, [together] * 4))


def test_a_server_that_is_away_says_so(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://somebody:hidden-word@/nothing?host={tmp_path}"
    with closing(Database(url)) as database, pytest.raises(UnavailableProblem, match="try again later") as caught:
        names(database)
    assert "\n" not in str(caught.value) and "hidden-word" not in str(caught.value)


def test_a_server_that_came_back_is_used_again(postgresql: Database) -> None:
    add(postgresql, "one")
    ended = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = :name"
    )
    with closing(Database(postgresql.url)) as other, other.write() as session:
        session.execute(ended, {"name": postgresql.url.database})
    assert names(postgresql) == ["one"]


def deadlock(session: Session) -> None:
    raise OperationalError("", {}, psycopg.errors.DeadlockDetected("deadlock detected"))


def test_a_transaction_is_repeated_after_a_deadlock(database: Database) -> None:
    tried: list[int] = []

    def second_time(session: Session) -> str:
        session.add(User(name="one", created=1.0))
        session.flush()
        tried.append(1)
        if len(tried) < 2:
            deadlock(session)
        return "done"

    assert database.commit(second_time) == "done"
    assert names(database) == ["one"] and len(tried) == 2


def test_a_transaction_is_repeated_three_times_and_only_after_a_deadlock(database: Database) -> None:
    tried: list[int] = []

    def never(session: Session) -> None:
        tried.append(1)
        deadlock(session)

    with pytest.raises(UnavailableProblem):
        database.commit(never)
    assert len(tried) == 3

    def broken(session: Session) -> None:
        tried.append(1)
        session.execute(text("SELECT * FROM nothing"))

    with pytest.raises(UnavailableProblem):
        database.commit(broken)
    assert len(tried) == 4


def test_two_rows_locked_crosswise_are_both_written(postgresql: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        add(postgresql, name)
    together = Barrier(2)

    def both(first: str, second: str) -> None:
        waited: list[bool] = []

        def change(session: Session) -> None:
            session.execute(update(User).where(User.name == first).values(created=User.created + 1))
            if not waited:
                waited.append(True)
                together.wait()
            session.execute(update(User).where(User.name == second).values(created=User.created + 1))

        postgresql.commit(change)

    threads = [Thread(target=both, args=names) for names in (("one", "two"), ("two", "one"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with postgresql.read() as session:
        assert session.scalars(select(User.created)).all() == [3.0, 3.0]


@pytest.mark.parametrize(
    "url",
    ["", "x", "mysql://x/y", "sqlite://", "sqlite:///:memory:", "postgres-x://user:hidden-word@host/x", "http://x"],
)
def test_urls_of_other_databases_are_errors(url: str) -> None:
    with pytest.raises(RecipeError, match="expected sqlite:///FILE or postgresql") as caught:
        Database(url)
    assert "hidden-word" not in str(caught.value)


def test_a_folder_that_is_missing_is_one_line(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "no/x.db", "No such file"), (tmp_path, "Is a directory")):
        with closing(Database(f"sqlite:///{path}")) as database, pytest.raises(RecipeError, match=words) as caught:
            database.check_place()
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_the_password_comes_from_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_WORD", "hidden-word")
    settings = Settings.model_validate(
        {"database": "postgresql://somebody@host/name", "database_password": "env:DATABASE_WORD"}
    )
    with closing(Database.of(settings)) as database:
        assert database.url.password == "hidden-word"
        assert "hidden-word" not in str(database.url) and "hidden-word" not in repr(database.engine)
    assert "hidden-word" not in repr(settings)
