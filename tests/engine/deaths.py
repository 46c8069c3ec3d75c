"""Workers of Ray that die at fault points, each point once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock


def _change(environment: dict[str, str]) -> None:
    os.environ.update(environment)


@contextmanager
def deaths(backend: Any, points: Sequence[str], folder: Path) -> Iterator[None]:
    """In this block, workers are killed at the points: the workers there are, which would cost seconds to start again,
    and those that replace them. Asserts that each point was met."""
    assert points
    dying = {"CURATE_FAULT_KILL": "|".join(points), "CURATE_FAULT_ONCE": str(folder)}
    with mock.patch.dict(os.environ, dying):
        _tell(backend, dying)
        try:
            yield
        finally:
            _tell(backend, dict.fromkeys(dying, ""))
    assert sorted(path.name for path in folder.iterdir()) == sorted(str(number) for number in range(len(points)))


def _tell(backend: Any, environment: dict[str, str]) -> None:
    import ray

    workers = [worker for _, worker in backend.idle]
    ray.get([worker.actor.call.options(concurrency_group="ask").remote(_change, environment) for worker in workers])
