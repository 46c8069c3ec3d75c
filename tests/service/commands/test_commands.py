"""`curate service …`: the first admin, lost tokens, people, migrations."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from curate.cli import app as curate
from curate.core.errors import CurateError, RecipeError
from curate.service.auth import tokens
from curate.service.auth.clock import now
from curate.service.auth.roles import Principal, Role
from curate.service.commands import app
from curate.service.database import migrate as module
from curate.service.database.database import Database
from curate.service.database.models import AuditEntry
from curate.service.settings import Settings


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The database of the service's YAML file."""
    config = tmp_path / "service.yaml"
    config.write_text(f"database: sqlite:///{tmp_path}/service.db\n")
    monkeypatch.setenv("CURATE_SERVICE_CONFIG", str(config))
    return tmp_path / "service.db"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words, catch_exceptions=False)


def token_of(result: Result) -> str:
    [line] = [line for line in result.stdout.splitlines() if line.startswith("token: ")]
    return line.removeprefix("token: ")


def principal_of(file: Path, text: str) -> Principal:
    with closing(Database(f"sqlite:///{file}")) as database, database.read() as session:
        return tokens.verified(session, text, now()).principal()


def test_init_shows_the_first_token_once(file: Path) -> None:
    first = run("init")
    assert first.exit_code == 0
    who = principal_of(file, token_of(first))
    assert (who.user, who.everywhere) == ("admin", Role.ADMIN)
    again = run("init")
    assert again.exit_code == 0 and "token: " not in again.stdout and "`curate service token USER`" in again.stdout
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_lost_token_is_replaced_on_the_machine(file: Path) -> None:
    run("init")
    made = principal_of(file, token_of(run("token", "admin", "--role", "viewer", "--days", "0")))
    assert (made.user, made.everywhere) == ("admin", Role.VIEWER)
    with pytest.raises(CurateError, match="user bob: not found"):
        run("token", "bob")
    with closing(Database(f"sqlite:///{file}")) as database, database.read() as session:
        entries = [(entry.user, entry.action, entry.outcome) for entry in session.query(AuditEntry)]
    assert entries[-2:] == [("service", "token.make", "ok"), ("service", "token.make", "not_found")]


def test_people_are_added_and_changed(file: Path) -> None:
    run("init")
    assert run("user", "anna").stdout == "user anna: no role\n"
    assert run("user", "anna", "--role", "operator").stdout == "user anna: operator in the whole service\n"
    assert run("user", "anna", "--disable").stdout == "user anna: operator in the whole service, disabled\n"
    with pytest.raises(CurateError, match="disabled"):
        run("token", "anna")
    assert run("user", "anna", "--enable").stdout == "user anna: operator in the whole service\n"
    with pytest.raises(CurateError, match="user ann: not found"):  # not added by mistake
        run("user", "ann", "--disable")
    with pytest.raises(CurateError, match="last admin"):
        run("user", "admin", "--disable")
    with pytest.raises(CurateError, match="workspace nowhere: not found"):
        run("user", "anna", "--role", "viewer", "--workspace", "nowhere")
    with pytest.raises(RecipeError, match="name: 'a b'"):
        run("user", "a b")


def test_the_url_follows_the_port_unless_it_is_given() -> None:
    assert Settings().url == Settings(port=0).url == "http://127.0.0.1:8080"
    assert Settings(port=9090).url == "http://127.0.0.1:9090"
    assert Settings(port=9090, url="https://curate.example").url == "https://curate.example"


def test_migrate_says_what_it_did(file: Path) -> None:
    assert run("migrate").stdout == f"migrated: {', '.join(module.heads())}\n"
    assert run("migrate").stdout == "the database is up to date\n"


def test_nothing_runs_on_tables_of_another_release(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("init")
    monkeypatch.setattr(module, "heads", lambda: ["0000"])
    with pytest.raises(RecipeError, match="newer release"):
        run("user", "anna")


def test_curate_hands_its_words_over(file: Path) -> None:
    shown = CliRunner().invoke(curate, ["service", "--help"])
    assert shown.exit_code == 0 and "curate service" in shown.stdout and "migrate" in shown.stdout
    assert CliRunner().invoke(curate, ["service", "migrate"]).stdout.startswith("migrated: ")
    wrong = CliRunner().invoke(curate, ["service", "token", "anna", "--days", "x"])
    assert wrong.exit_code == 2 and "--days" in wrong.stderr


def test_a_missing_package_is_one_line() -> None:
    code = "import sys; sys.modules['sqlalchemy'] = None; sys.argv = ['curate', 'service', 'init']; import curate.cli"
    done = subprocess.run([sys.executable, "-c", f"{code}; curate.cli.main()"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "curate: service: the package sqlalchemy is missing; install curate[service]\n"
