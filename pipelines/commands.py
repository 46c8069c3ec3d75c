"""Runs commands of this project as subprocesses and prints each before it runs."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from curate.core.errors import CurateError, InputError

OPTIONS: dict[str, dict[str, Any]] = {
    "--images": {"type": Path, "help": "folder of images; default: OpenClipart, downloaded with apt-get"},
    "--set": {"action": "append", "default": [], "help": "variable=value or stage.parameter=value"},
    "--endpoint": {"help": "base URL up to the version: http://HOST:8000/v1"},
    "--model": {"help": "the model's name at the endpoint"},
    "--key": {"help": "reference to its key: env:VARIABLE or file:PATH"},
}


def parser_of(doc: str | None, *options: str) -> argparse.ArgumentParser:
    """With a workspace, an engine and some of OPTIONS. doc: the module's."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for option in options:
        parser.add_argument(option, **OPTIONS[option])
    parser.add_argument("--workspace", default="workspace", help="output folder or URL")
    parser.add_argument("--engine", choices=["ray", "local"], default="ray")
    return parser


@contextmanager
def one_line(name: str) -> Iterator[None]:
    """Exit with one line if the block raises a user's error."""
    try:
        yield
    except CurateError as error:
        sys.exit(f"{name}: {error}")


def count_files(folder: Path, extensions: Collection[str], given: str, medium: str) -> int:
    """Raises InputError if the folder has none. given: the variable of make; medium: what its files are."""
    files = sum(path.suffix.lower().lstrip(".") in extensions for path in folder.rglob("*"))
    if not files:
        raise InputError(f"{given}={folder}: not a folder with {medium} in it; give one, or leave {given} out")
    return files


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
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        run("curate", "run", recipe, *where, *set_options(settings), "--json", str(result))
        outputs: dict[str, str] = json.loads(result.read_text())["outputs"]
        return outputs


def set_options(values: Iterable[str]) -> list[str]:
    return [word for value in values for word in ("--set", value)]
