"""Two processes do what one does: losses and gradients in float64, by torchrun with gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from distill.cli import main
from tests.distill.conftest import recipe_values
from tests.distill.ranks import take_steps

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]


def torchrun(port: int, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*TORCHRUN, f"--master-port={port}", "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in free:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in free]


@dataclass(frozen=True)
class Ended:
    """What two ranks have left: of steps taken by hand, and of the command line."""

    steps: Path
    recipe: Path
    run: Path
    said: str

    @property
    def values(self) -> dict[str, Any]:
        return yaml.safe_load(self.steps.read_text())


@pytest.fixture(scope="module")
def ended(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One torchrun for all, since each of its processes imports torch for seconds."""
    place = tmp_path_factory.mktemp("ranks")
    made = {"steps": {"precision": "float64", "steps": 9}}
    made["recipe"] = {"sequences": 1, "precision": "float64", "epsilon": 1e-6}
    for name, train in made.items():
        values = recipe_values(str(folder), str(place / "one"))
        values["train"] |= train
        (place / f"{name}.yaml").write_text(yaml.safe_dump(values))
    port, other = free_ports(2)
    steps, recipe = place / "steps.yaml", place / "recipe.yaml"
    command = ["train", str(recipe), "--set", f"run.folder={place}/two"]
    said = torchrun(port, "tests.distill.ranks", str(steps), "9", str(place), str(other), *command)
    return Ended(steps, recipe, place, said)


def test_two_ranks_equal_one(ended, tmp_path):
    """With three sequences a step, ranks have two and one; the epoch's last step may leave one rank with none."""
    take_steps(ended.values, 9, str(tmp_path))
    alone, *ranks = (torch.load(path) for path in (tmp_path / "0.pt", ended.run / "0.pt", ended.run / "1.pt"))
    for number, step in enumerate(alone["steps"]):
        assert sum(rank["steps"][number]["own"] for rank in ranks) == step["own"]
        for rank in ranks:
            assert rank["steps"][number]["sums"] == pytest.approx(step["sums"], rel=1e-12)
            for name, grad in step["grads"].items():
                assert torch.allclose(rank["steps"][number]["grads"][name], grad, rtol=1e-8, atol=1e-12), name
    assert {rank["steps"][0]["own"] > 0 for rank in ranks} == {True}
    for name, weight in alone["student"].items():
        assert torch.equal(ranks[0]["student"][name], ranks[1]["student"][name])
        assert torch.allclose(ranks[0]["student"][name], weight, atol=1e-6)
    for name, value in alone["standards"][0].items():
        assert torch.allclose(ranks[0]["standards"][0][name], value, rtol=1e-12)


def test_the_command_line_under_torchrun(ended, monkeypatch, capsys):
    """One sequence a step leaves the second rank without images throughout: it still takes every step."""
    assert ended.said.count("trained 4 steps") == 1
    monkeypatch.setattr(sys, "argv", ["distill", "train", str(ended.recipe)])
    with pytest.raises(SystemExit) as exit:
        main()
    assert not exit.value.code
    assert "trained 4 steps" in capsys.readouterr().out
    one, two = (
        [json.loads(line)["loss"] for line in (ended.run / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert len(one) == 4
    assert two == pytest.approx(one, rel=1e-9)
    scores = [json.loads((ended.run / name / "evaluation.json").read_text())["models"] for name in ("one", "two")]
    assert scores[0] == scores[1]
