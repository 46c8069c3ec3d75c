"""The local backend: everything in this process, one payload after the other. No Ray, no surprises, easy to debug."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from curate.core.contracts import Resources
from curate.engine.backends import HOW, How, Outcome, attempt
from curate.engine.backends.isolated import run_isolated


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
        how: How = HOW,
    ) -> Iterator[Outcome]:
        for index, payload in enumerate(payloads):
            if self.draining.is_set():
                return
            if how.isolated:
                yield run_isolated(function, payload, index)
            else:
                value, error = attempt(function, payload, how.shared)
                yield Outcome(index, value, error)

    def broadcast(self, function: Callable[[Any], Any], payload: Any) -> None:
        function(payload)

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass
