"""The key of an endpoint is in no file, log, event, error, report, job or actor description, and not in `ps`: also if
the endpoint repeats it in its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from curate.api import Workspace
from curate.core import secrets
from tests.e2e import image_files
from tests.e2e.commands import CommandResult, curate
from tests.engine.leaks import VALUE, traces, traces_in, watching_processes
from tests.servers.scripted import Endpoint, Scripted

ECHO = "no credit for {authorization}"
ROWS = 12
TOLD = "no credit for Bearer ["
"""What is left of an error that repeats the key."""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other test has read the secret."""
    monkeypatch.setattr(secrets, "_read", {})


def written(folder: Path, script: Scripted, key: str) -> Path:
    """A recipe with a report that asks an endpoint with a key."""
    images = image_files.write_good(folder / "images", ROWS)
    endpoints = {"local": {"base_urls": [script.base_url], "model": "tiny", "key": key}}
    (folder / "endpoints.yaml").write_text(yaml.safe_dump(endpoints))
    stages = {
        "pool": {"op": "acquire.folder", "namespace": "images", "path": str(images)},
        "generate": {"op": "caption.generate", "from": "pool", "endpoints": str(folder / "endpoints.yaml")},
        "sample": {"op": "select.all", "from": "generate"},
        "dataset": {"op": "pack.webdataset", "from": "sample", "name": "captioned"},
        "report": {"op": "report.html", "from": "dataset"},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    return folder / "recipe.yaml"


def echoing(endpoint: Endpoint) -> Scripted:
    """Asks for the key, and repeats it in several errors before it answers."""
    faults = [{"status": 503, "times": 2, "body": ECHO}, {"status": 400, "times": 2, "body": ECHO}]
    return endpoint.script(style="captions", key=VALUE, faults=faults)


def asked_about(recipe: Path, workspace: Path, run_id: str) -> list[CommandResult]:
    """All commands that tell something about a run."""
    images = recipe.parent / "images"
    names = [str(path.relative_to(images)) for path in sorted(images.glob("*/*")) if path.suffix != ".txt"]
    several = (("status",), ("status", run_id), ("logs", run_id, "--level", "debug"), ("diff", run_id, run_id))
    found = [curate(*words, "-w", workspace) for words in several]
    found += [curate("explain", name, "-w", workspace, "--run", run_id) for name in names]
    assert [one.code for one in found] == [0] * (len(several) + ROWS), found
    return [*found, curate("plan", recipe, "-w", workspace), curate("ops", "caption.generate")]


def test_a_run_leaves_nothing_of_the_key(
    fresh: None, workspace: Path, tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_ENDPOINT_KEY", VALUE)
    script = echoing(endpoint)
    recipe = written(tmp_path, script, "env:TOY_ENDPOINT_KEY")
    place = ("-w", workspace, "--failure-budget", "0.5")
    with watching_processes() as seen:
        ran = curate("run", recipe, *place, "--run-id", "one", "--json", tmp_path / "one.json")
        planned = curate("plan", recipe, "-w", workspace, "--json", tmp_path / "plan.json")
    assert (ran.code, planned.code) == (0, 0), (ran, planned)
    assert script.log()[-1]["authorization"] == f"Bearer {VALUE}"
    printed = [planned, ran, *asked_about(recipe, workspace, "one")]
    assert "endpoint_refuses" in repr(printed)
    for where, text in (("terminal", repr(printed)), ("ps", "\n".join(seen))):
        assert traces(where, text.encode()) == []
    assert traces_in(workspace) == [] and traces_in(tmp_path) == []
    assert TOLD in everything(workspace)  # the errors were quoted, without the key


def test_an_error_that_ends_the_run_has_nothing_of_the_key(
    fresh: None, workspace: Path, tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_ENDPOINT_KEY", VALUE)
    script = endpoint.script(faults=[{"status": 403, "body": ECHO}])
    recipe = written(tmp_path, script, "env:TOY_ENDPOINT_KEY")
    error = curate("run", recipe, "-w", workspace, "--run-id", "one").error
    assert TOLD in error and traces("error", error.encode()) == []
    assert "one: failed" in curate("status", "one", "-w", workspace).words
    assert traces_in(workspace) == [] and traces_in(tmp_path) == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_on_a_cluster_leaves_nothing_of_the_key(
    fresh: None, workspace: Path, tmp_path: Path, endpoint: Endpoint, ray_head: str
) -> None:
    """Submitted as a job: nor is it in what Ray knows of jobs, actors and tasks, and in its logs."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text(VALUE)
    (tmp_path / "recipe").mkdir()
    script = echoing(endpoint)
    recipe = written(tmp_path / "recipe", script, f"file:{tmp_path}/secret/key")
    far = ("--engine", "ray", "--address", ray_head, "--detach")
    with watching_processes() as seen:
        begun = curate("run", recipe, "-w", workspace, *far, "--run-id", "keyless", "--failure-budget", "0.5")
        assert begun.code == 0, begun
        spend = Workspace(str(workspace)).run("keyless").wait(timeout=250).spend.total
    assert spend.requests == script.stats()["requests"] > ROWS
    assert script.log()[-1]["authorization"] == f"Bearer {VALUE}"
    printed = [begun, *asked_about(recipe, workspace, "keyless")]
    for where, text in (("terminal", repr(printed)), ("ps", "\n".join(seen)), ("ray", known_to_ray(ray_head))):
        assert traces(where, text.encode()) == []
    assert traces_in(workspace) == [] and traces_in(tmp_path / "recipe") == []
    logs = [folder for folder in Path("/tmp").glob("ray-*/session_*/logs") if not folder.parent.is_symlink()]
    assert logs and [found for folder in logs for found in traces_in(folder)] == []
    assert TOLD in everything(workspace)


def known_to_ray(address: str) -> str:
    from ray.util import state

    listed: list[Any] = []
    for what in (state.list_jobs, state.list_actors, state.list_tasks, state.list_workers, state.list_runtime_envs):
        listed += what(address=address, detail=True, limit=1000, raise_on_missing_output=False)
    assert listed
    return json.dumps([vars(one) for one in listed], default=str)


def everything(workspace: Path) -> str:
    """The text of all files, those of Parquet as tables."""
    import pyarrow.parquet as pq

    files = [path for path in workspace.rglob("*") if path.is_file()]
    texts = [path.read_text(errors="replace") for path in files if path.suffix != ".parquet"]
    for path in files:
        if path.suffix == ".parquet":
            table = pq.read_table(path, partitioning=None)
            texts.append(f"{table.schema.metadata}")
    return "\n".join(texts)
