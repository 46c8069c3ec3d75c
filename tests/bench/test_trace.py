"""`python -m bench.trace` sees an image pass through the engine of this checkout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.long
def test_the_path_of_one_image_begins_in_a_worker_and_passes_every_stage(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    command = [sys.executable, "-m", "bench.trace", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    traced = json.loads(file.read_text())
    passed = {(function["file"], function["name"]): function["calls"] for function in traced["one_image"]["functions"]}
    assert passed["codec/images.py", "decode"] == 1
    assert {"Inspect.process", "Fingerprint.process", "Embed.process", "SelectAll.pick"} <= {name for _, name in passed}
    assert not any(file.startswith(("cli/", "api")) for file, _ in passed)
    assert {layer["layer"] for layer in traced["all"]["layers"] if layer["calls"]} >= {"cli", "api", "engine driver"}
