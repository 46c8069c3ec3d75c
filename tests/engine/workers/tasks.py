"""Tasks for the tests of workers."""

from __future__ import annotations

import json
import queue
import threading
from pathlib import Path
from typing import Any

from curate.core.contracts import Resources

CPU, GPU, REMOTE = Resources(), Resources(gpus=1), Resources(cpus=0.25, remote=True)
SECONDS = 60
"""Time limit of every wait; nothing takes that long."""


class Doors:
    """Doors at which tasks of this process wait until a test opens them."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def pass_through(self, payload: Any) -> Any:
        self.arrived.put(payload)
        assert self.open.wait(SECONDS)
        return payload


def double(value: int) -> int:
    return 2 * value


def log_lines(folder: Path, worker: str = "") -> list[dict[str, Any]]:
    files = sorted(folder.glob(f"{worker}*.jsonl"))
    assert all(file.name.rpartition("-")[2] == f"{number:06d}.jsonl" for number, file in enumerate(files, 1))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
