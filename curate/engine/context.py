"""Context of one run: what its steps share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from curate.core.contracts import Portion
from curate.core.errors import RESUMES, DrainedError
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.store import lease
from curate.core.store.storage import Storage
from curate.engine.losses import Losses
from curate.engine.outputs import Outputs
from curate.engine.progress import Progress
from curate.engine.record.events import Events
from curate.engine.spending import Spending
from curate.engine.state import Options
from curate.engine.task_runner import TaskRunner
from curate.engine.workers.scheduler import Scheduler


@dataclass
class Context:
    outputs: Outputs
    tasks: TaskRunner
    losses: Losses
    options: Options
    events: Events
    progress: Progress
    portions: dict[str, tuple[list[Portion], float]] = field(default_factory=dict)
    """Source -> its portions and the share of rows to take inside each, from the preflight."""
    spending: Spending | None = None
    """What the run spends at endpoints; None in a plan."""

    @property
    def pipeline(self) -> Pipeline:
        return self.outputs.pipeline

    @property
    def storage(self) -> Storage:
        return self.outputs.storage

    @property
    def backend(self) -> Scheduler:
        return self.tasks.backend

    @property
    def over_budget(self) -> bool:
        """Whether the run's budget is used up. Requests in flight are still answered, because they are paid for."""
        return self.spending is not None and self.spending.over

    def limiter(self, room: str) -> dict[str, Any]:
        """Where the run's limiter answers; stages have a room each."""
        return {**self.backend.limiter.address, "room": room}

    def lease(
        self, node: Node, output: str, done: Callable[[], bool] = lambda: False
    ) -> contextlib.AbstractContextManager[bool]:
        """Hold an output while building it. Waits, until SIGTERM, for the process that builds it now."""

        def on_wait(holder: dict[str, Any]) -> None:
            place = f"process {holder['pid']} on {holder['host']}"
            self.progress.say(f"{node.name}: waiting for {place}, which is building it")
            self.backend.release()

        def over() -> bool:
            if self.backend.draining.is_set():
                raise DrainedError(f"stopped before {node.name}; {RESUMES}")
            return done()

        return lease.hold(self.storage, output, over, on_wait)
