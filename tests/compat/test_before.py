"""What the commit before wrote is read: its workspace, its database, its training run, its recipes (`make.py` made
them)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from sqlalchemy import select

from curate.api import Workspace
from curate.core.hashing import digest
from curate.service.database.database import Database
from curate.service.database.migrate import migrate
from curate.service.database.models import IndexedRun, User
from distill.export import export
from distill.recipe import parse_recipe
from tests.compat.make import ARCHIVE
from tests.e2e.commands import curate

NEVER_KEPT = {"report"}
"""Reports are rendered by the code of today."""
NEWER = {"check": 49}
"""Rows of stages whose version rose since: texts with marks of thoughts fail."""
BESIDE = {"embed", "clusters"}
"""Stages of their pass, which compute nothing."""
AGAIN = {"sets", "profile"}
"""Global stages whose version rose since: of copies, another name may be kept; what clusters explain is more."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    (folder / "endpoints.yaml").write_text('local: { base_urls: ["http://127.0.0.1:1/v1"], model: tiny }\n')
    return folder


@pytest.fixture
def place(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, as the current folder: the recipes have relative paths."""
    shutil.copytree(written, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


def test_a_run_finds_everything_and_computes_nothing(place: Path) -> None:
    """The endpoint has gone, and no request is sent."""
    before = json.loads((place / "workspace/runs/first/result.json").read_text())
    done = curate("run", "recipe.yaml", "-w", place / "workspace", "--run-id", "second", "--json", "second.json")
    assert done.code == 0, done.err
    found = json.loads((place / "second.json").read_text())
    assert {name: stage["computed"] for name, stage in found["stages"].items()} == dict.fromkeys(
        before["ledger"], 0
    ) | NEWER
    assert found["ledger"]["pool"].pop("skipped") == {}  # its source counts them now
    assert found["ledger"] == before["ledger"]
    after = json.loads((place / "workspace/runs/second/result.json").read_text())
    assert {name for name, reused in after["reused"].items() if not reused} <= {*NEVER_KEPT, *NEWER, *BESIDE, *AGAIN}
    for name, output in before["outputs"].items():
        assert name in {*NEVER_KEPT, *NEWER, *AGAIN} or after["outputs"][name]["base"] == output["base"], name
    planned = curate("plan", "recipe.yaml", "-w", place / "workspace", "--json", "plan.json")
    assert planned.code == 0, planned.err
    lines = json.loads((place / "plan.json").read_text())["stages"]
    assert all(
        line["compute"] == 0 and line["certainty"] == "exact" for line in lines if line["stage"] not in NEVER_KEPT
    )


def test_its_run_is_reported(place: Path) -> None:
    workspace = Workspace(str(place / "workspace"))
    (run,) = workspace.runs()
    assert (run.run_id, run.state) == ("first", "done") and workspace.run("first").status().spend.total.requests == 49
    assert {one.name for one in workspace.datasets()} == {"compat", "stills"}
    rejected = curate("explain", "red/0.png", "--run", "first", "-w", place / "workspace")
    assert "exact_duplicate" in rejected.words, rejected.err
    assert "nothing" not in curate("du", "-w", place / "workspace").err
    freed = curate("gc", "-w", place / "workspace", "--keep", "1")
    assert freed.code == 0, freed.err
    diff = curate("diff", "first", "first", "-w", place / "workspace")
    assert diff.code == 0, diff.err


def test_its_database_is_migrated(place: Path) -> None:
    with closing(Database(f"sqlite:///{place / 'service.db'}")) as database:
        migrate(database)
        with database.read() as session:
            assert session.scalars(select(IndexedRun.title)).all() == ["compat"]
            assert len(session.scalars(select(User.name)).all()) == 5


def test_its_student_is_exported_and_needs_no_training(place: Path) -> None:
    assert (export(place / "student", place / "exported") / "config.json").is_file()
    called = [sys.executable, "-m", "distill.cli", "train", "student.yaml"]
    again = subprocess.run(called, cwd=place, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "4 steps" in again.stdout


def test_recipes_that_runs_keep_mean_the_same(written: Path) -> None:
    """With all their values, also those that were defaults: a field may be added, none may go."""
    semantic = json.loads((written / "recipes" / "semantic.json").read_text())
    assert semantic
    for name, before in semantic.items():
        values = yaml.safe_load((written / "recipes" / f"{name}.yaml").read_text())
        assert digest(parse_recipe(values, name).semantic()) == before, name
