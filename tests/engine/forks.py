"""A process that has imported everything and started no thread; it forks a driver for each order it gets, in no time.

Run as `python -m tests.engine.forks`. An order is a line of JSON on standard input: `workspace`, `changes` of the toy
pipeline, `environment`, and where the driver is to be killed: at the `call`-th Python call of its main thread. The
answer is a line: how the driver ended (`signal`), its one-line `error`, and how many `calls` it made when counted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from curate.core.errors import CurateError
from curate.engine import isolated
from curate.engine.context import Options
from curate.engine.run import run
from tests.engine import toys

COUNT_ONLY = 1 << 60


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
    """The driver: one run of the toy pipeline on the local engine."""
    os.environ.update(order.get("environment", {}))
    isolated.START_METHOD = "fork"  # a fork server would have to import everything again for each driver
    calls = Calls(order["call"]) if "call" in order else None
    if calls:
        sys.setprofile(calls)
    try:
        options = Options(segment_seconds=0.0, **order.get("options", {}))
        run(toys.pipeline(**order.get("changes", {})), order["workspace"], options=options)
    except CurateError as error:
        return {"error": str(error)}
    finally:
        sys.setprofile(None)
    return {"calls": calls.count if calls else 0}


def answer(order: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.write(writer, json.dumps(drive(order)).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    value: dict[str, Any] = {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, "error": None}
    return value | (json.loads(said) if said else {})


class Drivers:
    """The process above, from the test's side."""

    def __enter__(self) -> Self:
        root = Path(__file__).parent.parent.parent
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.forks"],
            cwd=root,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def run(self, workspace: str | Path, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(order | {"workspace": str(workspace)}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process that forks drivers has died"
        return json.loads(line)  # type: ignore[no-any-return]

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def main() -> None:
    assert threading.active_count() == 1
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
