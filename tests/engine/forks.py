"""A process with everything imported and no thread started, which quickly forks a driver for each order.

Run as `python -m tests.engine.forks MODULE ...`, with further modules to import. An order is a line of JSON on standard
input: `workspace`, `changes` of the toy pipeline (or `fits`, those of the one with a Fit, or `derived`, of the one with
a Derive, or `slow`, of the one for clusters, or a `recipe`, in parts of `part_rows`, or `made` by a function
MODULE:NAME of `arguments`, or the words of a `command` of `curate` instead), `options`, `engine`, `run_id`,
`environment`, seconds between two `flush`es of its events, the name of another `host` to be on, whose `clock` is so
many seconds ahead, seconds of `lease`s, a `console` file to speak to, and where the driver is to be killed: at the
`call`-th Python call of its main thread. The answer is two lines: the driver's `pid` when it starts, and in the end how
it went: `signal`, its one-line `error`, and how many `calls` it made when they were counted.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console

from curate.core import group
from curate.core.errors import CurateError
from curate.core.recipe.load import load
from curate.core.store import lease
from curate.engine.record import events
from curate.engine.run import run
from curate.engine.state import Options
from curate.engine.tasks import running as tasks
from tests.engine import derived, nodes, toys

COUNT_ONLY = 1 << 60
CLONE_NEWUTS = 0x04000000


class Calls:
    """Counts the main thread's Python calls, and ends the process at one of them."""

    def __init__(self, last: int) -> None:
        self.last, self.count = last, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.count += 1
            if self.count == self.last:
                os.kill(os.getpid(), signal.SIGKILL)


def drive(order: dict[str, Any]) -> dict[str, Any]:
    """The driver: one run of the toy pipeline."""
    os.environ.update(order.get("environment", {}))
    if "host" in order:
        move(order["host"], order.get("clock", 0.0))
    for name, seconds in order.get("lease", {}).items():
        setattr(lease, name, seconds)
    events.FLUSH_SECONDS = order.get("flush", events.FLUSH_SECONDS)
    tasks.START_METHOD = "fork"  # a fork server would have to import everything again for each driver
    calls = Calls(order["call"]) if "call" in order else None
    speak = Path(order["console"]).open("w", buffering=1) if "console" in order else None  # noqa: SIM115
    console = Console(file=speak, width=200) if speak else None
    if "command" in order:
        return {"code": importlib.import_module("tests.e2e.commands").curate(*order["command"]).code}
    options = Options(**{"segment_seconds": 0.0} | order.get("options", {}))
    group.LEAST_PART_ROWS = order.get("part_rows", group.LEAST_PART_ROWS)
    if "recipe" in order:
        pipeline = load(Path(order["recipe"]))
    elif "derived" in order:
        pipeline = derived.pipeline(**order["derived"])
    elif "made" in order:
        module, _, name = order["made"].partition(":")
        pipeline = getattr(importlib.import_module(module), name)(**order["arguments"])
    elif "slow" in order:
        pipeline = nodes.pipeline(**order["slow"])
    else:
        pipeline = toys.fits(**order["fits"]) if "fits" in order else toys.pipeline(**order.get("changes", {}))
    if calls:
        sys.setprofile(calls)
    try:
        about = {"engine": order.get("engine", "local"), "run_id": order.get("run_id")}
        run(pipeline, order["workspace"], options=options, console=console, **about)
    except CurateError as error:
        return {"error": str(error)}
    except Exception:  # noqa: BLE001 - the test shows it
        return {"error": traceback.format_exc()}
    finally:
        sys.setprofile(None)
    return {"calls": calls.count if calls else 0}


def move(host: str, clock: float) -> None:
    """From now on this process is on another machine, by its name (in a separate namespace if that is permitted)
    and by its clock."""
    if ctypes.CDLL(None).unshare(CLONE_NEWUTS) == 0:
        socket.sethostname(host)
    else:
        socket.gethostname = lambda: host
    now = time.time
    time.time = lambda: now() + clock


def answer(order: dict[str, Any]) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.set_inheritable(writer, False)
        try:
            os.write(writer, json.dumps(drive(order)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    _say({"pid": child})
    _, status = os.waitpid(child, 0)
    with open(reader, "rb") as pipe:
        said = b"" if os.WIFSIGNALED(status) else pipe.read()
    if os.WIFSIGNALED(status):
        _say({"signal": os.WTERMSIG(status), "error": None})
    else:
        _say({"signal": 0, "error": None} | json.loads(said or b'{"error": "ended without a word"}'))


def _say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)  # noqa: T201


class Drivers:
    """The process above, from the test's side."""

    def __init__(self, *modules: str) -> None:
        self.modules = modules
        self.driver = 0
        """Number of the driver under way; 0 while there is none."""

    def __enter__(self) -> Self:
        command, root = [sys.executable, "-m", "tests.engine.forks", *self.modules], Path(__file__).parent.parent.parent
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=root, text=True, stdin=pipe, stdout=pipe)
        return self

    def start(self, workspace: str | Path, **order: Any) -> int:
        """The driver's process number; `end` says how it went."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order | {"workspace": str(workspace)}) + "\n")
        self.process.stdin.flush()
        self.driver = int(self._hear()["pid"])
        return self.driver

    def end(self) -> dict[str, Any]:
        ended = self._hear()
        self.driver = 0
        return ended

    def kill(self) -> None:
        """End the driver that is still under way, if one is."""
        if self.driver:
            os.kill(self.driver, signal.SIGKILL)
            self.end()

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process that forks drivers has died"
        return json.loads(line)  # type: ignore[no-any-return]

    def run(self, workspace: str | Path, **order: Any) -> dict[str, Any]:
        self.start(workspace, **order)
        return self.end()

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    assert threading.active_count() == 1
    for line in sys.stdin:
        answer(json.loads(line))


if __name__ == "__main__":
    main()
