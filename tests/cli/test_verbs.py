"""`submit`, `runs`, `watch`, `resume`, `stop`, `logs` on a workspace, without a service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner, Result

from curate.api import Workspace
from curate.cli import app
from curate.core.errors import CurateError

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 4 images, a recipe that reads them, and a workspace in which it has run once."""
    folder = tmp_path_factory.mktemp("verbs")
    (folder / "images").mkdir()
    for number in range(4):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(folder / "images" / f"{number}.png")
    stages = {
        "pool": {"op": "acquire.folder", "path": "${images}", "namespace": "toy"},
        "inspect": {"op": "image.inspect", "from": "pool"},
        "all": {"op": "select.all", "from": "inspect"},
        "dataset": {"op": "pack.webdataset", "from": "all", "name": "toy"},
    }
    recipe = {"vars": {"images": str(folder / "images")}, "stages": stages}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    numbers = {"op": "tests.engine.toys.rows:Numbers", "namespace": "toy", "rows": 8}
    bad = {"op": "tests.engine.toys.rows:Bad", "from": "pool", "numbers": [1, 2, 3]}
    (folder / "bad.yaml").write_text(yaml.safe_dump({"stages": {"pool": numbers, "bad": bad}}))
    result = CliRunner().invoke(app, ["submit", str(folder / "recipe.yaml"), "-w", str(folder / "ws"), "-q"])
    assert result.exception is None, result.output
    return folder


@pytest.fixture
def curate(place: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command on the workspace."""
    monkeypatch.setenv("CURATE_WORKSPACE", str(place / "ws"))
    monkeypatch.delenv("CURATE_SERVER", raising=False)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def first(place: Path) -> str:
    return Workspace(str(place / "ws")).runs()[0].run_id


def test_submit_without_a_server_runs_here(curate: Run, place: Path) -> None:
    result = curate("submit", place / "recipe.yaml")
    assert result.exit_code == 0 and "Funnel" in result.output and "reused" in result.output


def test_runs_are_listed_latest_first(curate: Run, place: Path) -> None:
    result = curate("runs", "--limit", 1)
    latest = Workspace(str(place / "ws")).runs()[-1].run_id
    assert result.exit_code == 0 and latest in result.output and "4 of 4" in result.output
    assert first(place) in curate("runs", "--state", "done").output
    assert first(place) not in curate("runs", "--state", "failed").output


def test_watching_a_run_that_is_done_shows_what_it_made(curate: Run, place: Path) -> None:
    result = curate("watch", first(place))
    assert result.exit_code == 0
    assert "dataset: done, 4 rows" in result.output and f"{first(place)}: done" in result.output
    assert "/datasets/toy/" in result.output.replace("\n", "")


def test_watching_a_run_that_failed_fails(curate: Run, place: Path) -> None:
    assert curate("submit", place / "bad.yaml", "--run-id", "bad").exit_code
    result = curate("watch", "bad")
    assert isinstance(result.exception, CurateError)
    assert str(result.exception).startswith("run bad: failed: ")


def test_resume_runs_the_recorded_recipe_with_its_options(curate: Run, place: Path) -> None:
    before = {run.run_id for run in Workspace(str(place / "ws")).runs()}
    assert curate("submit", place / "recipe.yaml", "--run-id", "tight", "--failure-budget", "0.5").exit_code == 0
    result = curate("resume", "tight")
    assert result.exit_code == 0, result.output
    [made] = {run.run_id for run in Workspace(str(place / "ws")).runs()} - before - {"tight"}
    record = Workspace(str(place / "ws")).run(made).record
    assert record.state == "done" and all(record.reused().values())
    assert record.record["options"]["failure_budget"] == 0.5


def test_a_run_up_to_a_stage_is_resumed_as_one(curate: Run, place: Path) -> None:
    assert curate("submit", place / "recipe.yaml", "--run-id", "upto", "--to", "inspect").exit_code == 0
    before = {run.run_id for run in Workspace(str(place / "ws")).runs()}
    result = curate("resume", "upto")
    assert result.exit_code == 0, result.output
    [made] = {run.run_id for run in Workspace(str(place / "ws")).runs()} - before
    assert [*Workspace(str(place / "ws")).run(made).record.record["stages"]][-1] == "inspect"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["submit", "r.yaml", "--title", "x"], "--title: needs --server (or CURATE_SERVER); leave it out"),
        (["submit", "r.yaml", "--drain-seconds", "3"], "--drain-seconds: needs --server"),
        (["runs", "--user", "ada"], "--user: needs --server"),
        (["watch", "nothing"], "run 'nothing': not in "),
        (["resume", "nothing"], "run 'nothing': not in "),
        (["submit", "r.yaml", "--server", "lab", "--engine", "ray"], "--engine: does not apply with --server"),
        (["submit", "r.yaml", "--server", "lab", "--json", "x.json"], "--json: does not apply with --server"),
        (["resume", "r", "--server", "lab", "--engine", "ray"], "--engine, --address: do not apply with --server"),
        (["runs", "-w", "main", "--server", "http://u:pw@x"], "server 'x': expected http(s)://HOST[:PORT]"),
    ],
)
def test_mistakes_are_one_line(curate: Run, words: list[str], error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATE_TOKEN", "cur_x")
    result = curate(*words)
    assert isinstance(result.exception, CurateError)
    assert str(result.exception).startswith(error)


def test_a_folder_is_not_a_workspace_of_a_server(curate: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATE_TOKEN", "cur_x")
    result = curate("runs", "--server", "localhost:1", "-w", place / "ws")
    assert "it is a workspace's name there, such as main" in str(result.exception)
