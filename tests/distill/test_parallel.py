"""Two processes do what one does: losses and gradients in float64, by torchrun with gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from distill.cli import main
from tests.distill.ranks import take_steps

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]


def torchrun(port: int, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*TORCHRUN, f"--master-port={port}", "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_two_ranks_equal_one(values, tmp_path, port):
    """With three sequences a step, ranks have two and one; the epoch's last step may leave one rank with none."""
    values["train"] |= {"precision": "float64", "steps": 9}
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    torchrun(port, "tests.distill.ranks", str(tmp_path / "recipe.yaml"), "9", str(tmp_path / "two"))
    take_steps(values, 9, str(tmp_path / "one"))
    alone, *ranks = (torch.load(tmp_path / name) for name in ("one/0.pt", "two/0.pt", "two/1.pt"))
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


def test_the_command_line_under_torchrun(values, tmp_path, port, monkeypatch, capsys):
    """One sequence a step leaves the second rank without images throughout: it still takes every step."""
    values["train"] |= {"sequences": 1, "precision": "float64", "epsilon": 1e-6}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    said = torchrun(port, "distill.cli", "train", str(path), "--set", f"run.folder={tmp_path}/two")
    assert said.count("trained 4 steps") == 1
    monkeypatch.setattr(sys, "argv", ["distill", "train", str(path), "--set", f"run.folder={tmp_path}/one"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "trained 4 steps" in capsys.readouterr().out
    one, two = (
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert len(one) == 4
    assert two == pytest.approx(one, rel=1e-9)
    scores = [json.loads((tmp_path / name / "evaluation.json").read_text())["models"] for name in ("one", "two")]
    assert scores[0] == scores[1]
