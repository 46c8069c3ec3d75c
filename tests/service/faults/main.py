"""The service, as `curate service serve --config FILE` runs it, with the faults that a test needs.

python -m tests.service.faults.main FILE '{"deaths": FILE, "ahead": FILE, "quick": true}'

deaths: a JSON list of the points at which the process kills itself, each only once; it is started again at once, as
systemd or Kubernetes would. A point is `before` or `after`, and `write STATE` (the transaction into that state) or
`ACTION` (submit, stop, kill); `before job` is between the submission's file and its job.
ahead: a file with the seconds by which its wall clock is off.
quick: a replica takes over from one that died a second ago, for tests of one replica.

It checks its targets every 2 s, and a driver on another machine is dead after four lost beats instead of nine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from curate.core.store import lease
from curate.service import app, service, serving  # noqa: F401 - imported once, before the processes are forked
from curate.service.auth import clock
from curate.service.commands import serve
from curate.service.reconcile import leader, loop, step
from tests.service.faults.sites import write


class Deaths:
    """Those left, in a file, because this process forgets."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()

    @property
    def left(self) -> list[str]:
        found: list[str] = json.loads(self.file.read_text())
        return found

    def pass_(self, point: str) -> None:
        with self._lock:
            left = self.left
            if point in left:
                left.remove(point)
                write(self.file, left)
                sys.stderr.write(f"dies {point}\n")
                sys.stderr.flush()
                os.kill(os.getpid(), signal.SIGKILL)


def around(place: Any, name: str, deaths: Deaths, label: Callable[..., str]) -> None:
    """Let the process die before and after a function."""
    inner = getattr(place, name)

    def outer(*args: Any, **more: Any) -> Any:
        about = label(*args)
        deaths.pass_(f"before {about}")
        found = inner(*args, **more)
        deaths.pass_(f"after {about}")
        return found

    setattr(place, name, outer)


def patch(about: dict[str, Any]) -> None:
    lease.STALE_SECONDS = 4 * lease.BEAT_SECONDS
    loop.HEALTH_SECONDS = loop.SILENT_SECONDS
    if about.get("quick"):
        leader.TAKE_OVER_SECONDS, leader.SURE_SECONDS = 1.0, 2.5  # the other one is dead
    if about.get("ahead"):
        clock.now._wall = lambda: time.time() + float(Path(about["ahead"]).read_text())
    if about.get("deaths"):
        deaths = Deaths(Path(about["deaths"]))
        around(step.transitions, "write", deaths, lambda _, run, step_, *more: _change(run, step_))
        around(step, "perform", deaths, lambda action, *more: action.value)
        around(step, "stop_environment", deaths, lambda *more: "job")


def _change(run: Any, step_: Any) -> str:
    return f"write {step_.state.value}" if step_.state is not run.state else "write nothing"


def main(config: str, about: dict[str, Any]) -> None:
    patch(about)
    if not about.get("deaths"):
        serve(Path(config))
        return
    ending = False

    def end(*_: object) -> None:
        nonlocal ending
        ending = True
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    while True:
        child = os.fork()
        if child == 0:
            serve(Path(config))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if ending or not os.WIFSIGNALED(status):
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
