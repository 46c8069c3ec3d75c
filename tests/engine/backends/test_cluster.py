"""Clusters of several nodes: those that die or join, and those that lack the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]


def run(scenario: str, folder: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent / "cluster.py"), scenario, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.nightly  # test_nodes kills a node too
def test_a_node_that_dies_costs_time_only(tmp_path: Path) -> None:
    run("spot", tmp_path)


def test_runs_that_need_each_other_share_two_cpus(tmp_path: Path) -> None:
    run("shared", tmp_path)


@pytest.mark.nightly  # test_nodes rejects such a node too
def test_a_node_without_this_package_is_rejected_by_name(tmp_path: Path) -> None:
    run("without", tmp_path)
