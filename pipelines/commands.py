"""Runs commands of this project as subprocesses and prints each before it runs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def run(program: str, *arguments: str, capture: bool = False) -> str:
    """Run a program of this environment. If it fails, exit with its status, since it has printed its error.

    capture: return its output, which is still printed.
    """
    print(f"\n$ {program} {shlex.join(arguments)}", flush=True)
    command = [str(Path(sys.executable).parent / program), *arguments]
    output = []
    with subprocess.Popen(command, stdout=subprocess.PIPE if capture else None, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            output.append(line)
    if process.returncode:
        sys.exit(process.returncode)
    return "".join(output)


def run_pipeline(recipe: str, settings: Iterable[str], workspace: str, engine: str) -> dict[str, str]:
    """Run a recipe and return the place of each stage's output."""
    where = ["--workspace", workspace, "--engine", engine]
    outputs: dict[str, str] = run_json("run", recipe, *where, *set_options(settings))["outputs"]
    return outputs


def run_json(*arguments: str) -> Any:
    """Run a command of `curate` and return what it writes with --json."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        run("curate", *arguments, "--json", str(result))
        return json.loads(result.read_text())


def set_options(values: Iterable[str]) -> list[str]:
    return [word for value in values for word in ("--set", value)]
