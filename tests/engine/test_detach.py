"""Runs that are left to a cluster: what is submitted, what goes wrong before they begin, one through a real head."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from curate.api import Options, Workspace
from curate.core.errors import CurateError, InputError, RecipeError, RunExistsError
from curate.core.recipe.load import parse
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage, open_workspace
from curate.engine import detach
from curate.engine.detach import Jobs
from tests.e2e import image_files
from tests.e2e.commands import curate
from tests.engine import toys

RECIPE = """
vars: {side: 8}
stages:
  pool: {op: acquire.folder, path: IMAGES, namespace: images}
  inspect: {op: image.inspect, from: pool}
  size: {op: image.filter, from: inspect, min_side: "${side}"}
"""


class Cluster:
    """Jobs as a cluster would keep them."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[str, dict[str, str]]] = {}
        self.over: dict[str, str] = {}
        self.fails = False

    def __call__(self, address: str | None) -> Cluster:
        return self

    def known(self, name: str) -> bool:
        return name in self.jobs

    def submit(self, name: str, entrypoint: str, environment: dict[str, str]) -> None:
        if self.fails:
            raise CurateError("the cluster is full")
        self.jobs[name] = entrypoint, environment

    def ended(self, name: str) -> str | None:
        return self.over.get(name)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(detach, "Jobs", made)
    return made


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return image_files.write_good(tmp_path / "images", 12)


def recipe(images: Path) -> Pipeline:
    return parse(RECIPE.replace("IMAGES", str(images)))


def submit(workspace: Path, pipeline: Pipeline, **options: Any) -> Any:
    about = {"run_id": "far", "detach": True, "engine": "ray"} | options
    return Workspace(str(workspace)).submit(pipeline, **about)


def test_a_submission_starts_elsewhere_with_the_given_recipe(workspace: Path, images: Path, cluster: Cluster) -> None:
    run = submit(workspace, recipe(images), options=Options(failure_budget=0.5, retry={}))
    assert run.status().state == "submitted" and not run.status().ended and run.status().stages == ()
    assert [found.state for found in Workspace(str(workspace)).runs()] == ["submitted"]
    command, environment = cluster.jobs["far"]
    assert command == f"curate run --submission far --workspace {workspace} --engine ray --address auto"
    assert environment == {"RAY_JOB_STOP_WAIT_TIME_S": "60"}
    there = Workspace(str(workspace)).submitted("far", engine="local")
    result = there.wait()
    assert result.ledger["size"].before == 12 and run.wait(timeout=5).ledger == result.ledger
    written = open_storage(str(workspace)).read_json("runs/far/run.json")
    assert written["options"]["failure_budget"] == 0.5 and written["recipe"]["stages"]["size"]["min_side"] == 8
    assert run.status().state == "done"


def test_the_command_line_is_quoted(tmp_path: Path) -> None:
    odd = open_workspace(str(tmp_path / "a b; rm -rf $HOME"))
    assert f"--workspace '{odd.url}' --engine" in detach.entrypoint(odd, "far")


def test_stages_of_a_script_and_of_a_module(workspace: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = toys.chain(toys.Brightness())
    submit(workspace, pipeline)
    again, _ = detach.read(open_storage(str(workspace)), "far")
    assert [(n.name, n.stage, n.inputs) for n in again.nodes.values()] == [
        (n.name, n.stage, n.inputs) for n in pipeline.nodes.values()
    ]
    monkeypatch.setattr(toys.Brightness, "__module__", "__main__")
    with pytest.raises(RecipeError, match="stage_1: its class is defined in a script; move it to a module"):
        submit(workspace, pipeline, run_id="other")


def test_a_name_is_taken_once(workspace: Path, images: Path, cluster: Cluster) -> None:
    submit(workspace, recipe(images))
    with pytest.raises(RunExistsError, match="--run-id far: this run exists in"):
        submit(workspace, recipe(images))
    with pytest.raises(RunExistsError, match="--run-id far: the cluster has a job of this name; choose another id"):
        submit(workspace.parent / "other", recipe(images))
    with pytest.raises(RecipeError, match=r"--run-id '../x': expected letters"):
        submit(workspace, recipe(images), run_id="../x")
    with pytest.raises(RecipeError, match="--detach: expected --engine ray, not local"):
        submit(workspace, recipe(images), engine="local")


def test_a_submission_that_the_cluster_rejects_leaves_nothing(workspace: Path, images: Path, cluster: Cluster) -> None:
    cluster.fails = True
    with pytest.raises(CurateError, match="the cluster is full"):
        submit(workspace, recipe(images))
    assert open_storage(str(workspace)).list("runs") == {}


def test_why_a_submitted_run_could_not_begin_is_its_status(workspace: Path, images: Path, cluster: Cluster) -> None:
    run = submit(workspace, recipe(images / "nowhere"))
    with pytest.raises(InputError):
        Workspace(str(workspace)).submitted("far", engine="local").wait()
    assert run.status().state == "failed" and "nowhere" in run.status().error
    with pytest.raises(CurateError, match=r"run far: .*nowhere"):
        run.wait(timeout=5)
    said = curate("status", "far", "-w", workspace)
    assert said.code == 0 and "far: failed" in said.out and "nowhere" in said.out


def test_a_job_that_never_reached_the_workspace_is_named(workspace: Path, images: Path, cluster: Cluster) -> None:
    run = submit(workspace, recipe(images))
    cluster.over["far"] = "failed (curate: not found)"
    status = run.status()
    assert (status.state, status.error) == ("failed", "its job ended before the run began: failed (curate: not found)")
    assert not (workspace / "runs/far/refused.json").exists()


def test_a_submitted_run_can_be_stopped_before_it_begins(workspace: Path, images: Path, cluster: Cluster) -> None:
    run = submit(workspace, recipe(images))
    run.stop()
    with pytest.raises(InputError, match=r"run far: .* requested to stop it at .*; it is stopping"):
        run.stop()


# --- where nothing listens --------------------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "http://127.0.0.1:1", "http://127.0.0.1:SILENT", "ray://127.0.0.1:1"]
)
def test_where_no_job_server_answers_it_is_one_line_within_seconds(address: str, silent: int) -> None:
    address, began = address.replace("SILENT", str(silent)), time.monotonic()
    with pytest.raises(CurateError) as raised:
        Jobs(address)
    assert time.monotonic() - began < 10
    assert str(raised.value).startswith(f"--address {address}: ") and "http://HOST:8265" in str(raised.value)


def test_jobs_say_how_they_ended(monkeypatch: pytest.MonkeyPatch, silent: int) -> None:
    """What Ray's client answers, and with which errors, as one line or none."""

    class Client:
        def get_job_info(self, name: str) -> Any:
            if name == "none":
                raise RuntimeError("Request failed with status code 404: no such job")
            over = SimpleNamespace(is_terminal=lambda: name != "runs", value="FAILED")
            return SimpleNamespace(status=over, message="Job failed\n\nsh: curate: not found\n")

    monkeypatch.setattr(Jobs, "_connected", lambda self: Client())
    jobs = Jobs(f"http://127.0.0.1:{silent}")
    assert [jobs.known(name) for name in ("none", "runs")] == [False, True]
    assert jobs.ended("runs") is None and jobs.ended("none") == "the cluster does not know this job"
    assert jobs.ended("over") == "failed (sh: curate: not found)"


# --- a real head ------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_detached_run_is_watched_stopped_and_resumed(workspace: Path, tmp_path: Path, ray_head: str) -> None:
    images = image_files.write_good(tmp_path / "images", 12)
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE.replace("IMAGES", str(images)))
    words = ["run", file, "-w", workspace, "--detach", "--engine", "ray", "--address", ray_head]
    said = curate(*words, "--run-id", "far")
    assert (said.code, said.out) == (0, "far\n") and "every node of the cluster must see it" in said.err
    assert "this run exists" in curate(*words, "--run-id", "far").error
    run = Workspace(str(workspace)).run("far")
    assert run.wait(timeout=200).ledger["size"].before == 12
    assert curate("status", "far", "-w", workspace).out.startswith("far: done")
    assert json.loads((workspace / "runs/far/submission.json").read_text())["run_id"] == "far"
    assert curate("logs", "far", "-w", workspace).code == 0
    assert curate(*words, "--run-id", "next", "-s", "size.min_side=9").code == 0
    said = curate("stop", "next", "-w", workspace)  # before its job has begun it
    assert said.code == 0 and "run next: stopped; the same command resumes from there" in said.out
    assert "it is stopped" in curate("stop", "next", "-w", workspace).error
