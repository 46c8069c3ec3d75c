"""Runs that are left to a cluster: what is submitted, what goes wrong before they begin, one through a real head."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from curate.api import Options, Workspace
from curate.core.errors import CurateError, InputError, RecipeError, RunExistsError
from curate.core.recipe.load import parse
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage, open_workspace
from curate.engine import detach
from curate.engine.jobs import JobInfo, JobServer, stop_environment
from tests.e2e import image_files
from tests.e2e.commands import curate
from tests.engine import toys
from tests.engine.gates import Gate
from tests.scopes import ROOT

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
        self.over: dict[str, JobInfo] = {}
        self.fails = False

    def __call__(self, address: str | None) -> Cluster:
        return self

    def info(self, name: str) -> JobInfo | None:
        return self.over.get(name) or (JobInfo(name, "running") if name in self.jobs else None)

    def submit(self, name: str, entrypoint: str, environment: dict[str, str]) -> None:
        if self.fails:
            raise CurateError("the cluster is full")
        self.jobs[name] = entrypoint, environment

    def close(self) -> None:
        pass


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(detach, "job_server", made)
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
    assert command == f"curate run --submission far --workspace {workspace} --engine ray"
    assert environment == {"RAY_JOB_STOP_WAIT_TIME_S": "60"}
    there = Workspace(str(workspace)).submitted("far", engine="local")
    result = there.wait()
    assert result.ledger["size"].before == 12 and run.wait(timeout=60).ledger == result.ledger
    written = open_storage(str(workspace)).read_json("runs/far/run.json")
    assert written["options"]["failure_budget"] == 0.5 and written["recipe"]["stages"]["size"]["min_side"] == 8
    assert run.status().state == "done"


def test_the_command_line_is_quoted(tmp_path: Path) -> None:
    odd = open_workspace(str(tmp_path / "a b; rm -rf $HOME"))
    assert f"--workspace '{odd.url}' --engine" in Workspace(odd.url).entrypoint("far")


def test_stages_of_a_script_and_of_a_module(workspace: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = toys.chain(toys.Brightness())
    submit(workspace, pipeline)
    again = detach.read(open_storage(str(workspace)), "far").pipeline
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
        run.wait(timeout=60)
    said = curate("status", "far", "-w", workspace)
    assert said.code == 0 and "far: failed" in said.out and "nowhere" in said.out


def test_a_job_that_never_reached_the_workspace_is_named(workspace: Path, images: Path, cluster: Cluster) -> None:
    run = submit(workspace, recipe(images))
    cluster.over["far"] = JobInfo("far", "failed", "Job failed\n\ncurate: not found\n")
    status = run.status()
    assert (status.state, status.error) == ("failed", "its job ended before the run began: failed (curate: not found)")
    assert not (workspace / "runs/far/refused.json").exists()


def test_a_submitted_run_can_be_stopped_before_it_begins(workspace: Path, images: Path, cluster: Cluster) -> None:
    run = submit(workspace, recipe(images))
    run.stop()
    with pytest.raises(InputError, match=r"run far: .* requested to stop it at .*; it is stopping"):
        run.stop()


# --- prepared by a service --------------------------------------------------------------------------------------------

ABOUT = {"run": "far", "attempt": "1", "user": "ann", "service": "here"}


def test_a_submission_is_prepared_without_a_cluster(workspace: Path, images: Path) -> None:
    place, text = Workspace(str(workspace)), RECIPE.replace("IMAGES", str(images))
    options = {"failure_budget": 0.5, "retry": {"size": ["error"]}, "max_tokens": None}
    for _ in range(2):
        place.prepare("far-1", text, options, ABOUT)
    written = workspace / "runs/far-1/submission.json"
    older = json.loads(written.read_text())
    for name in ("cpus", "gpus", "sample_rows", "to"):  # a version without them wrote it
        del older["options"][name]
    written.write_text(json.dumps(older))
    place.prepare("far-1", text, options, ABOUT)
    with pytest.raises(RunExistsError, match="--run-id far-1: this run exists in"):
        place.prepare("far-1", text, options | {"failure_budget": 0.4}, ABOUT)
    with pytest.raises(RecipeError, match="options: budget: unknown; see `curate run --help`"):
        place.prepare("far-2", text, {"budget": 1}, ABOUT)
    assert place.attempt("far-1").state == "none" and place.run_names() == ["far-1"]
    about = place.summary("far-1")
    assert about.state == "submitted" and about.submission == ABOUT and about.started
    assert place.run("far-1").status().state == "submitted"  # no cluster is asked


def test_a_prepared_run_has_who_submitted_it(workspace: Path, images: Path) -> None:
    place = Workspace(str(workspace))
    place.prepare("far-1", RECIPE.replace("IMAGES", str(images)), {"failure_budget": 0.5}, ABOUT)
    place.submitted("far-1", engine="local").wait()
    assert place.attempt("far-1").state == "done" and place.summary("far-1").submission == ABOUT
    record = place.run("far-1").record.record
    assert record["submission"] == ABOUT and record["options"]["failure_budget"] == 0.5
    place.prepare("far-1", RECIPE.replace("IMAGES", str(images)), {"failure_budget": 0.5}, ABOUT)  # repeated later


def test_why_a_prepared_run_could_not_begin(workspace: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe that the driver's version does not take, and a driver that is not a job."""
    place = Workspace(str(workspace))
    place.prepare("far-1", "stages: {pool: {op: no.such}}", {}, ABOUT)
    with pytest.raises(RecipeError):
        place.submitted("far-1", engine="local")
    refused = place.attempt("far-1")
    assert refused.state == "refused" and "no.such" in refused.error
    assert (place.summary("far-1").state, place.summary("far-1").error) == ("refused", refused.error)
    place.prepare("far-2", RECIPE.replace("IMAGES", str(images)), {}, ABOUT)
    for address in ("", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(CurateError, match="--submission: RAY_ADDRESS is not set; only a job of a Ray cluster"):
            place.submitted("far-2")
    assert "RAY_ADDRESS is not set" in place.attempt("far-2").error


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
def test_where_no_job_server_answers_it_is_one_line_within_seconds(
    address: str, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detach, "JobServer", partial(JobServer, seconds=1.0))
    address, began = address.replace("SILENT", str(silent)), time.monotonic()
    with pytest.raises(CurateError) as raised:
        detach.job_server(address)
    assert time.monotonic() - began < 100
    assert str(raised.value).startswith(f"--address {address}: ") and "http://HOST:8265" in str(raised.value)


def test_the_token_of_a_cluster_is_where_ray_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("from-a-file\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert detach._token() == ""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert detach._token() == "from-a-file"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "from-the-environment")
    assert detach._token() == "from-the-environment"


# --- a real head ------------------------------------------------------------------------------------------------------


@pytest.mark.nightly  # in CI, test_keys.py has a run that the command line detaches to this head
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
    assert (
        said.code == 0
        and "run next: stopped; with a new --run-id or none, the same command resumes from there" in said.out
    )
    assert "it is stopped" in curate("stop", "next", "-w", workspace).error


@pytest.mark.nightly
@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_prepared_run_is_killed_before_it_begins_and_tried_again(
    workspace: Path, tmp_path: Path, ray_head: str
) -> None:
    """As a service does it: a job for each attempt, with the workspace as the truth."""
    images = image_files.write_good(tmp_path / "images", 12)
    place, jobs = Workspace(str(workspace)), JobServer(ray_head)
    assert jobs.resources().cpus == 2.0 and jobs.version()
    for attempt in ("made-1", "made-2"):
        place.prepare(attempt, RECIPE.replace("IMAGES", str(images)), {}, ABOUT)
    place.request_kill("made-1")
    for attempt in ("made-1", "made-2", "made-2"):
        jobs.submit(attempt, place.entrypoint(attempt), stop_environment(30), {"run": "made"})
    ended = {attempt: _ended(jobs, attempt) for attempt in ("made-1", "made-2")}
    assert ended["made-1"].status == "failed" and place.attempt("made-1").state == "none"
    assert ended["made-2"].status == "succeeded" and place.attempt("made-2").state == "done"
    assert place.heartbeat("made-2").look() is False and "curate run --submission made-2" in (jobs.log("made-2") or "")
    jobs.close()


TOYS = """
stages:
  pool: {op: "tests.engine.toys.rows:Numbers", namespace: toys}
  costly: {op: "tests.engine.toys.rows:Costly", from: pool, gate: GATE}
"""


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_run_is_killed_then_stopped_through_ray_then_done(workspace: Path, gate: Gate, ray_head: str) -> None:
    """Three attempts, of which the first two wait in the middle of a stage."""
    place, jobs = Workspace(str(workspace)), JobServer(ray_head)
    environment = stop_environment(30) | {"PYTHONPATH": str(ROOT)}
    for attempt in ("gated-1", "gated-2", "gated-3"):
        place.prepare(attempt, TOYS.replace("GATE", str(gate.folder) if attempt != "gated-3" else "''"), {}, ABOUT)
        jobs.submit(attempt, place.entrypoint(attempt), environment)
        if attempt != "gated-3":
            gate.wait()
            assert place.attempt(attempt).state == "open" and place.heartbeat(attempt).look() is True
        if attempt == "gated-1":
            place.request_kill(attempt)
        elif attempt == "gated-2":
            assert jobs.stop(attempt)
        job = _ended(jobs, attempt)
        state = {"gated-1": ("failed", "open"), "gated-2": ("stopped", "stopped"), "gated-3": ("succeeded", "done")}
        assert (job.status, place.attempt(attempt).state) == state[attempt], jobs.log(attempt)
        assert place.heartbeat(attempt).look() is False
    assert [place.summary(f"gated-{number}").state for number in (1, 2, 3)] == ["killed", "stopped", "done"]
    assert place.summary("gated-2").cpu_hours > 0.0
    jobs.close()


def _ended(jobs: JobServer, name: str) -> JobInfo:
    until = time.monotonic() + 100
    while time.monotonic() < until:
        found = jobs.info(name)
        assert found is not None
        if found.ended:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{name} runs for over 100 s")
