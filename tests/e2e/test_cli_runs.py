"""Runs watched, stopped and interrupted through the command line, and its messages for bugs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from curate.core.errors import RESUMES
from tests.conftest import ROOT
from tests.e2e import image_files
from tests.e2e.commands import PROGRAM, curate
from tests.engine.gates import Gate

pytestmark = pytest.mark.timeout(100)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path)
    yield made
    made.close()


def write(folder: Path, **stages: dict[str, object]) -> Path:
    images = image_files.write_good(folder / "images", 12)
    source = {"op": "acquire.folder", "path": str(images), "namespace": "images", "shard_rows": 4}
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump({"stages": {"pool": source, **stages}}, sort_keys=False))
    return file


class Under:
    """`curate run` in a separate process, whose second stage waits at a gate."""

    def __init__(self, folder: Path, gate: Gate) -> None:
        stage = {"op": "tests.engine.toys:Costly", "from": "pool", "gate": str(gate.folder)}
        self.recipe, self.place, self.gate = write(folder, dear=stage), folder / "workspace", gate
        words = [PROGRAM, "run", self.recipe, "-w", self.place, "--run-id", "one"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(words, cwd=ROOT, **pipes)  # type: ignore[call-overload]
        gate.wait()

    def tell(self, signal: signal.Signals) -> None:
        os.kill(self.process.pid, signal)

    def end(self) -> tuple[int, str]:
        """Exit code and standard error."""
        _, error = self.process.communicate(timeout=120)
        return self.process.returncode, error


@pytest.fixture
def under(tmp_path: Path, gate: Gate) -> Iterator[Under]:
    made = Under(tmp_path, gate)
    yield made
    made.process.kill()
    made.process.communicate()


def test_a_run_is_stopped_in_seconds_though_a_task_hangs(under: Under) -> None:
    words = curate("status", "one", "-w", under.place).words
    assert "one: running" in words and "In progress" in words and "dear toy.costly running" in words
    printed = curate("stop", "one", "-w", under.place)  # the gate stays closed
    assert printed.code == 0 and printed.out.splitlines()[0] == "run one: stop requested"
    assert printed.out.splitlines()[-1] == f"run one: stopped; {RESUMES}"
    assert under.end()[0] == 143
    assert "requested to stop it at" in curate("stop", "one", "-w", under.place).error
    words = curate("status", "one", "-w", under.place).words
    assert words.startswith("one: stopped") and RESUMES in words
    for name in ("arrived", "go"):  # the gate is open
        (under.gate.folder / name).unlink()
        (under.gate.folder / name).touch()
    command = ["run", under.recipe, "-w", under.place, "-q", "--run-id"]
    assert "--run-id one: this run exists in " in curate(*command, "one").error
    assert curate(*command, "two").code == 0


@pytest.mark.parametrize(
    ("signal", "code", "printed"),
    [
        pytest.param(signal.SIGTERM, 143, RESUMES, marks=pytest.mark.long),
        (signal.SIGINT, 130, f"curate: interrupted; {RESUMES}"),
    ],
)
def test_a_signal_stops_a_run(under: Under, signal: signal.Signals, code: int, printed: str) -> None:
    under.tell(signal)
    ended, error = under.end()
    assert ended == code and printed in error and "Traceback" not in error
    assert curate("status", "one", "-w", under.place).out.startswith("one: stopped")
    assert curate("stop", "one", "-w", under.place).error.endswith("already stopped; only a running run can be stopped")


@pytest.mark.long
def test_a_second_interrupt_ends_a_run_at_once(under: Under) -> None:
    under.tell(signal.SIGINT)
    assert under.process.stderr is not None and "press Ctrl-C again" in under.process.stderr.readline()
    under.tell(signal.SIGINT)
    assert under.end()[0] == 130
    assert curate("status", "one", "-w", under.place).out.startswith("one: killed")
    assert curate("stop", "one", "-w", under.place).error == (
        "curate: run one: already killed; only a running run can be stopped"
    )


def test_a_bug_is_one_line_and_its_traceback_is_in_the_log(tmp_path: Path) -> None:
    recipe = write(tmp_path, broken={"op": "tests.engine.toys:Divided", "from": "pool"})
    error = curate("run", recipe, "-w", tmp_path / "workspace", "--run-id", "one").error
    assert error.startswith("curate: run one: ZeroDivisionError: division by zero; ") and "`curate logs one`" in error
    printed = curate("logs", "one", "-w", tmp_path / "workspace", "--level", "error")
    lines = printed.out.splitlines()
    assert "ERROR" in lines[0] and "ZeroDivisionError: division by zero" in lines[0]
    assert lines[1] == "    Traceback (most recent call last):" and lines[-1].strip().startswith("ZeroDivisionError")
    assert "ZeroDivisionError" in curate("status", "one", "-w", tmp_path / "workspace").out


def test_logs_of_a_run(tmp_path: Path) -> None:
    place, recipe = tmp_path / "workspace", write(tmp_path, inspect={"op": "image.inspect", "from": "pool"})
    assert curate("run", recipe, "-w", place, "--run-id", "one", "-q").code == 0
    storage = place / "runs/one/logs"
    for file in storage.glob("*"):
        file.unlink()
    printed = curate("logs", "one", "-w", place, "--follow")
    assert (printed.code, printed.out, printed.err) == (
        0,
        "",
        "curate: run one: no log records at level info or above\n",
    )
    storage.mkdir(exist_ok=True)
    about = {"time": 1e9, "level": "warning", "stage": "inspect", "unit": "7", "worker": "cpu-1", "node": "far"}
    (storage / "cpu-1-000001.jsonl").write_text(json.dumps(about | {"message": "slow\nvery [slow]"}) + "\n")
    line = "2001-09-09 01:46:40 WARNING inspect unit 7 on cpu-1 at far: slow very [slow]"
    assert curate("logs", "one", "-w", place, "--stage", "inspect").out.splitlines() == [line]
    assert "expected one of pool, inspect" in curate("logs", "one", "-w", place, "--stage", "none").error
    for command in ("logs", "stop", "status"):
        assert "run 'none': not in" in curate(command, "none", "-w", place).error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--deadline", "0"], "--deadline 0: expected seconds above 0"),
        (["--detach"], "--detach: expected --engine ray, not local"),
        (["--detach", "--engine", "ray", "--json", "x.json"], "--json: a detached run has no result yet"),
        (["--detach", "--engine", "ray", "--address", "127.0.0.1:1"], "--address 127.0.0.1:1: no Ray cluster"),
        (["--submission", "none"], "not a workspace"),
    ],
)
def test_a_wrong_word_about_a_run_is_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    began = time.monotonic()
    assert message in curate("run", write(tmp_path), "-w", tmp_path / "workspace", *words).error
    assert time.monotonic() - began < 100
