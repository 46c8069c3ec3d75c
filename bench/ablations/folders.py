"""Folders of the ablations, and commands as a user would run them, with their CPU time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("CURATE_ABLATIONS", ROOT / ".cache" / "ablations"))
RECIPES = Path(__file__).parent / "recipes"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1")


class CommandError(RuntimeError):
    """A command that ended with an error after `cpu_seconds`."""

    def __init__(self, message: str, cpu_seconds: float) -> None:
        super().__init__(message)
        self.cpu_seconds = cpu_seconds


class InterruptedCommandError(CommandError):
    """A command that was stopped and can be resumed."""


def call(module: str, arguments: Sequence[str], log: Path) -> float:
    """Run `python -m MODULE ARGUMENTS` with one thread, append its output to `log`, and return its CPU seconds.

    On an interrupt, the command finishes its step and writes its checkpoint. Raises CommandError.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", module, *arguments]
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | _ONE_THREAD,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        interrupted: BaseException | None = None
        while True:
            try:
                _, status, usage = os.wait4(process.pid, 0)
                break
            except KeyboardInterrupt as stop:
                interrupted = stop
                process.terminate()
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime
    if interrupted is not None:
        raise InterruptedCommandError("interrupted; run the same command to resume", seconds) from interrupted
    if process.returncode:
        lines = log.read_text(errors="replace").strip().splitlines() or [""]
        raise CommandError(f"{module} ended with {process.returncode}: {lines[-1]} (see {log})", seconds)
    return seconds


@dataclass(frozen=True)
class Curated:
    """A dataset, and the CPU time of this call (almost none if it existed)."""

    dataset: str
    cpu_seconds: float


def curate(recipe: str, settings: Sequence[str], stage: str = "dataset") -> Curated:
    """Run a pipeline of this folder on the local engine; returns the output of `stage`."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        arguments = [
            "run",
            str(RECIPES / f"{recipe}.yaml"),
            "--workspace",
            str(HOME / "workspace"),
            "--engine",
            "local",
        ]
        arguments += [word for setting in settings for word in ("--set", setting)]
        seconds = call("curate.cli", [*arguments, "--quiet", "--json", str(result)], HOME / "logs" / f"{recipe}.log")
        return Curated(json.loads(result.read_text())["outputs"][stage], seconds)
