"""What a run's workers occupy: GPU-seconds and CPU-seconds from their start to their end, whether they are busy or not.

A cluster pays for that: while a worker exists, no other run gets its GPU.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from curate.core.contracts import Resources


@dataclass(frozen=True)
class Allocated:
    gpu_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __add__(self, other: Allocated) -> Allocated:
        return Allocated(self.gpu_seconds + other.gpu_seconds, self.cpu_seconds + other.cpu_seconds)

    def to_json(self) -> dict[str, float]:
        return {"gpu_seconds": round(self.gpu_seconds, 3), "cpu_seconds": round(self.cpu_seconds, 3)}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Allocated:
        return cls(float(found.get("gpu_seconds", 0.0)), float(found.get("cpu_seconds", 0.0)))


class Allocation:
    """Counts the workers of a run. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = Allocated()
        self._held: dict[object, tuple[Resources, float]] = {}

    def begin(self, worker: object, resources: Resources) -> None:
        with self._lock:
            self._held[worker] = resources, time.monotonic()

    def end(self, worker: object) -> None:
        with self._lock:
            resources, since = self._held.pop(worker)
            self._ended += _occupied(resources, since)

    def so_far(self) -> Allocated:
        with self._lock:
            return sum((_occupied(*held) for held in self._held.values()), self._ended)


def _occupied(resources: Resources, since: float) -> Allocated:
    seconds = time.monotonic() - since
    return Allocated(seconds * resources.gpus, seconds * resources.cpus)
