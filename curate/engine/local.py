"""The local backend: everything in this process, one payload after the other. No Ray, no surprises, easy to debug."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from curate.core.stage import Resources
from curate.engine.backend import Outcome, attempt


class LocalBackend:
    name = "local"

    def __init__(self) -> None:
        self.draining = threading.Event()

    def slots(self, resources: Resources) -> int:
        return 1

    def map(
        self,
        function: Callable[[Any], Any],
        payloads: Sequence[Any],
        resources: Resources,
        *,
        isolated: bool = False,
    ) -> Iterator[Outcome]:
        for index, payload in enumerate(payloads):
            if self.draining.is_set():
                return
            if isolated:
                yield _in_child(function, payload, index)
            else:
                value, error = attempt(function, payload)
                yield Outcome(index, value, error)

    def close(self) -> None:
        pass


def _in_child(function: Callable[[Any], Any], payload: Any, index: int) -> Outcome:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            value, error = pool.submit(attempt, function, payload).result()
            return Outcome(index, value, error)
        except BrokenProcessPool:
            return Outcome(index, error="the worker process died", crashed=True)
