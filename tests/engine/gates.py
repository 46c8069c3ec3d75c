"""Gates that hold a run until a test opens them, and checks that processes have ended."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import psutil


class Gate:
    """Two FIFOs that `toys.Costly` stops at, and a third that a driver may speak to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.console: IO[str] | None = None
        for name in ("arrived", "go", "console"):
            os.mkfifo(folder / name)

    def wait(self) -> None:
        """Wait until a run has reached the gate."""
        (self.folder / "arrived").read_text()

    def let_one_pass(self) -> None:
        """Wait for one batch and let it pass."""
        self.wait()
        (self.folder / "go").write_text("")

    def waiting(self) -> str:
        """What the driver that speaks to `console` says when it has to wait for another; its FIFO stays open."""
        self.console = (self.folder / "console").open()
        return next(line for line in self.console if "waiting for process" in line)

    def open(self) -> None:
        """Open the gate permanently: the FIFOs become files, whose reads and writes return at once."""
        with open(self.folder / "go", "w"):
            (self.folder / "go").rename(self.folder / "gone")
            (self.folder / "go").write_text("")
        (self.folder / "arrived").rename(self.folder / "over")

    def close(self) -> None:
        if self.console is not None:
            self.console.close()


class Family:
    """All descendants of a process except two agents of Ray, which miss their raylet
    only after a minute."""

    def __init__(self, pid: int) -> None:
        names = {child.pid: child.name() for child in psutil.Process(pid).children(recursive=True)}
        self.members = {pid: name for pid, name in names.items() if not name.endswith("Agent")}
        self.handles = {pid: os.pidfd_open(pid) for pid in self.members}

    def left(self, within_seconds: float) -> list[str]:
        """Names of processes that did not end in time; a zombie process counts as ended."""
        alive = [self.members[pid] for pid, handle in self.handles.items() if not _ended(handle, within_seconds)]
        close(self.handles.values())
        return alive


def _ended(handle: int, within_seconds: float) -> bool:
    return bool(select.select([handle], [], [], within_seconds)[0])


def close(handles: Iterable[int]) -> None:
    for handle in handles:
        os.close(handle)
