"""From a folder of images to training, with the service and a real Ray: submit, watch, stop, resume, tag, resolve."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from curate.cli import app
from curate.client import Client
from curate.core.errors import DrainedError
from distill.samples.sources.mixture import open_source
from distill.samples.sources.tagged import resolve
from tests.engine.gates import Gate
from tests.service.one_machine import OneMachine, embedded

pytestmark = pytest.mark.long


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """8 images, a recipe for them, and one that waits at a gate in its second stage."""
    (tmp_path / "images").mkdir()
    for number in range(8):
        Image.new("RGB", (16, 16), (20 * number, 0, 0)).save(tmp_path / "images" / f"{number}.png")
    (tmp_path / "tiny.yaml").write_text(recipe({"op": "image.inspect"}, "toy"))
    (tmp_path / "slow.yaml").write_text(recipe({"op": "dear", "gate": str(tmp_path)}, "slow"))
    return tmp_path


def recipe(inspect: dict[str, str], name: str) -> str:
    stages = {
        "pool": {"op": "acquire.folder", "path": "images", "namespace": name},
        "inspect": {**inspect, "from": "pool"},
        "all": {"op": "select.all", "from": "inspect"},
        "dataset": {"op": "pack.webdataset", "from": "all", "name": name},
    }
    return yaml.safe_dump({"stages": stages}, sort_keys=False)


def roots(folder: Path) -> dict[str, str]:
    return {"images": str(folder / "images"), "gate": str(folder)}


@pytest.fixture
def gate(folder: Path) -> Iterator[Gate]:
    made = Gate(folder)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("CURATE_SERVER", "CURATE_TOKEN", "CURATE_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.timeout(400)
def test_submit_watch_stop_resume_tag_train(folder: Path, gate: Gate, ray_head: str) -> None:
    with embedded(folder / "ws", ray_head, roots(folder)) as site:
        _curate("login", site.url, "--name", "here", typed=site.token)
        run = _curate("submit", folder / "tiny.yaml", "--server", "here").strip()
        assert "dataset: done, 8 rows" in _curate("watch", run, "--server", "here")
        with Client(site.url, site.token) as client:
            _tagged(client, run)
            _stopped_and_resumed(client, folder, gate)
    assert site.code == 0 and "Traceback" not in site.err.read_text()


def _tagged(client: Client, run: str) -> None:
    """The dataset of a run is found, tagged, and resolved by a training."""
    [dataset] = client.datasets("main")
    assert (dataset["name"], dataset["rows"], dataset["run"]) == ("toy", 8, run)
    client.tag("main", "toy", "good", dataset["base"])
    found = resolve("curate://here/toy@good")
    assert (found.dataset, found.fingerprint) == (dataset["url"], dataset["fingerprint"])
    assert len(open_source(found.dataset)) == 8


def _stopped_and_resumed(client: Client, folder: Path, gate: Gate) -> None:
    """A run is stopped in the middle of a stage; resuming it reuses the stage before."""
    op = {"kind": "op", "name": "dear", "value": "tests.engine.toys.rows:Costly"}
    client.post("registrations", {"workspace": "main", **op})
    run = client.submit(folder / "slow.yaml", workspace="main", drain_seconds=60)
    gate.wait()
    assert run.stop()["request"] == "stop"
    with pytest.raises(DrainedError, match="stopped"):
        run.wait(180)
    _open(folder)
    assert run.resume()["attempt"] == 2
    found = run.wait(180)
    states = {stage["stage"]: stage["state"] for stage in found["stage_list"]}
    assert (found["state"], states["pool"], states["dataset"]) == ("done", "reused", "done")
    assert {dataset["name"] for dataset in client.datasets("main")} == {"toy", "slow"}


def _open(folder: Path) -> None:
    """Open a gate that no process waits at any more."""
    for name in ("go", "arrived"):
        (folder / name).unlink()
        (folder / name).touch()


def _curate(*words: object, typed: str = "") -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], input=typed)
    assert result.exit_code == 0, (words, result.exception, result.output)
    return result.stdout


# --- its own Ray ------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_runs_outlast_the_service_and_its_ray(folder: Path, gate: Gate) -> None:
    """The service ends in the middle of a run, and its Ray with it; the next start finds the run lost and resumes it.
    Then Ray dies alone."""
    with embedded(folder / "ws", roots=roots(folder)) as site:
        token = site.token
        with Client(site.url, token) as client:
            op = {"kind": "op", "name": "dear", "value": "tests.engine.toys.rows:Costly"}
            client.post("registrations", {"workspace": "main", **op})
            run = client.submit(folder / "slow.yaml", workspace="main").id
            gate.wait()
    assert site.code == 0 and site.end_seconds < 100
    _open(folder)
    with embedded(folder / "ws", roots=roots(folder)) as site, Client(site.url, token) as client:
        found = client.run(run).wait(240)
        assert (found["state"], found["attempt"]) == ("done", 2)
        assert "lost" in [change["after"] for change in found["changes"]]
        _dies(site, client)
        assert client.submit(folder / "tiny.yaml", workspace="main").wait(240)["state"] == "done"
    assert (folder / "ws-service" / "ray-token").read_text() not in site.err.read_text()


def _dies(site: OneMachine, client: Client) -> None:
    """Ray's head is killed, and starts again at another address."""
    before = client.get("targets/local")["address"]
    [head] = [child for child in psutil.Process(site.process.pid).children() if "--head" in child.cmdline()]
    head.kill()
    for _ in range(600):
        if client.get("targets/local")["address"] != before:
            return
        time.sleep(0.1)
    raise AssertionError("Ray did not start again")
