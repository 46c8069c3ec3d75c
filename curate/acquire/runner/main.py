"""The runner: a process in img2dataset's environment that fetches the portions that its parent sends, one at a time.

It reads JSON lines from stdin and answers with JSON lines; `curate.acquire.download.runner` is its parent. The bytes of
images and videos go to the spool, a file that the parent opened and that has no name. A line about one follows its
bytes. The runner ends when stdin closes or its parent is gone, and leaves no files.

With the argument `check` it imports what any settings need, and ends: the last step of building the environment.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[3]
WATCH_SECONDS = 1.0


class Ours:
    """Finds this project's modules, but none of the packages installed with it."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] != "curate":
            return None
        return PathFinder.find_spec(name, [str(ROOT)] if name == "curate" else path, target)


class Channel:
    """The JSON lines to and from the parent."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)  # img2dataset prints
        self._lock = threading.Lock()
        self.incoming: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(os.getppid(),), daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            with self._lock:
                while line:
                    line = line[os.write(self._out, line) :]
        except OSError:
            os._exit(0)  # the parent is gone

    def fail(self, reason: str, errno: int | None = None) -> None:
        """Tell the parent why this process cannot continue, and end it. errno: of an error of the spool."""
        self.send({"failed": " ".join(reason.split())[:1000], "errno": errno})
        os._exit(1)

    def _listen(self, parent: int) -> None:
        """A process forked from the parent may hold stdin open, so the parent's life is watched too."""
        pending = b""
        while os.getppid() == parent:
            if not select.select([0], [], [], WATCH_SECONDS)[0]:
                continue
            more = os.read(0, 2**16)
            if not more:
                break
            *lines, pending = (pending + more).split(b"\n")
            for line in lines:
                self.incoming.put(json.loads(line))
        os._exit(0)


def only_what_is_used(resizes: bool) -> None:
    """Keep img2dataset's modules from importing what is not used here, which takes a second of processor time.

    Its package gets its path, but does not run: `__init__` imports the command line and pandas. Modules that are
    imported without being used are empty: wandb, which also leaves folders in the temporary folder, and albumentations,
    which the resizer needs only to change sizes.
    """
    package = find_spec("img2dataset")
    assert package, "img2dataset is not installed"
    sys.modules["img2dataset"] = module_from_spec(package)
    for name in ("wandb",) if resizes else ("wandb", "albumentations"):
        sys.modules[name] = ModuleType(name)


def check() -> None:
    """Import all that a runner may import; Python keeps the bytecode of what it compiles for it."""
    sys.meta_path.append(Ours)
    only_what_is_used(resizes=True)
    import protego  # noqa: F401 - `robots_txt: cached` imports it

    from curate.acquire.runner.work import check_img2dataset

    check_img2dataset()


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a drain sends it to all processes of a run
    channel = Channel()
    hello = channel.incoming.get()
    warnings.simplefilter("ignore")  # images decide how many there are, and Python keeps each in memory
    logging.disable()
    sys.meta_path.append(Ours)
    from curate.core.child import limit

    limit(AS=hello["memory_bytes"], CORE=0)
    try:
        only_what_is_used(resizes=hello["settings"]["resize_mode"] != "no")
        from curate.acquire.runner.work import VERSION, Work

        work = Work(hello["settings"], hello["limiter"], hello["spool"], channel.send, channel.fail)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        channel.fail(f"{type(error).__name__}: {error}")
    threading.Thread(target=_beat, args=(channel, work, hello["beat_seconds"]), daemon=True).start()
    channel.send({"ready": {"img2dataset": VERSION}})
    while True:
        order = channel.incoming.get()
        try:
            work.portion(order["offset"], order["size"])
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
            channel.fail(f"{type(error).__name__}: {error}")


def _beat(channel: Channel, work: Any, seconds: float) -> None:
    """Show the parent that this process runs, and for how long it has been decoding one image. End the process when the
    run's limiter is gone: the run is over, and the next one starts its own processes."""
    while True:
        time.sleep(seconds)
        if work.hosts.error is not None:
            channel.fail(f"{type(work.hosts.error).__name__}: {work.hosts.error}")
        channel.send({"alive": work.decoding_seconds()})


if __name__ == "__main__":
    check() if sys.argv[1:] == ["check"] else main()
