"""How the benchmarks measure: medians of several runs, ratios within one run, memory of all processes together."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

REPEATS = 3


def seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median wall time of `work`."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def line(name: str, value: str, note: str = "") -> None:
    print(f"{name:<58} {value:>16}  {note}", flush=True)


def load() -> str:
    """The machine's load in the last minute, for figures that are taken beside other work."""
    return f"load {os.getloadavg()[0]:.0f}"


def machine() -> str:
    flags = next((row for row in Path("/proc/cpuinfo").read_text().splitlines() if row.startswith("flags")), "")
    wanted = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags.split()]
    return f"{os.cpu_count()} cores ({', '.join(wanted)}), {psutil.virtual_memory().total / 2**30:.0f} GiB"


class PeakMemory:
    """Peak of the sum of PSS over this process's descendants, plus unmapped files in /dev/shm, while it runs."""

    def __init__(self, process: subprocess.Popen[bytes], every_seconds: float = 0.25) -> None:
        self.process, self.every = process, every_seconds
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        shm_before = _shm_bytes()
        while self.process.poll() is None:
            try:
                family = [psutil.Process(self.process.pid)]
                family += family[0].children(recursive=True)
            except psutil.NoSuchProcess:
                break
            pss = [_pss(member.pid) for member in family]
            shared = max(0, _shm_bytes() - shm_before - sum(shm for _, shm in pss))
            self.peak_bytes = max(self.peak_bytes, sum(total for total, _ in pss) + shared)
            time.sleep(self.every)

    def wait(self) -> int:
        self.process.wait()
        self._thread.join()
        if self.process.returncode:
            raise RuntimeError(f"{self.process.args} ended with {self.process.returncode}")
        return self.peak_bytes


def _pss(pid: int) -> tuple[int, int]:
    """(PSS, its part in shared memory) in bytes."""
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    facts = {row.split(":")[0]: int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss")}
    return facts.get("Pss", 0), facts.get("Pss_Shmem", 0)


def _shm_bytes() -> int:
    stats = os.statvfs("/dev/shm")
    return (stats.f_blocks - stats.f_bfree) * stats.f_frsize
