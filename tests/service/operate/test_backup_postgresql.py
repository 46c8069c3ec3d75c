"""The commands of docs/how-to/operate-the-service.md for PostgreSQL."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

from curate.service.auth import tokens
from curate.service.auth.clock import now
from curate.service.database.database import Database
from curate.service.database.migrate import prepare
from curate.service.database.models import User
from tests.servers.postgres import Postgres, folder


def test_a_dump_restores_people_and_tokens(postgresql: Database, postgres: Postgres, tmp_path: Path) -> None:
    with postgresql.write() as session:
        user = User(name="operator", created=1.0)
        session.add(user)
        session.flush()
        token, text = tokens.made(user.id, now())
        session.add(token)
    found, restored = folder(), postgres.empty()
    assert found is not None
    programs = (found / "initdb").resolve().parent
    where = [f"--host={restored.query['host']}", "--username=tester"]
    dump = f"--file={tmp_path / 'service.dump'}"
    subprocess.run([programs / "pg_dump", *where, "--format=custom", dump, str(postgresql.url.database)], check=True)
    subprocess.run(
        [programs / "pg_restore", *where, f"--dbname={restored.database}", tmp_path / "service.dump"], check=True
    )
    with closing(Database(restored)) as copy:
        prepare(copy)
        with copy.read() as session:
            assert tokens.verified(session, text, now()).principal().user == "operator"
