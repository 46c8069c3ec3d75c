"""Walk the DAG of a run: each step begins once what it needs is there."""

from __future__ import annotations

import threading
import time

from curate.core.errors import DrainedError
from curate.engine.context import Context
from curate.engine.steps import steps
from curate.engine.units.step import Step

WAIT_SECONDS = 1.0
"""Between two checks of which steps are ready, if none has ended."""
ANSWER_SECONDS = 600.0
"""Longest wait for requests in flight once the budget is used up; each has its own, shorter limit."""


class Runner:
    """Runs the steps of a run, each in a thread: branches overlap, and passes follow each other shard by shard."""

    def __init__(self, context: Context) -> None:
        self.ctx = context
        self.steps = steps(context.pipeline, context.outputs.built)
        self.begun: set[Step] = set()
        """Steps that others may follow by shard."""
        self.ended: set[Step] = set()
        self.errors: list[BaseException] = []
        self.changed = threading.Condition()

    def walk(self) -> None:
        """Build every stage. The first error ends the other steps, and is raised once they have ended."""
        threads: dict[Step, threading.Thread] = {}
        try:
            with self.changed:
                while len(self.ended) < len(self.steps) and not self.errors:
                    for step in self.steps:
                        ready = self.ended.issuperset(step.after) and self.begun.issuperset(step.follows)
                        if step not in threads and ready:
                            thread = threading.Thread(target=self._run_step, args=(step,), daemon=True)
                            threads[step] = thread
                            thread.start()
                    self.changed.wait(WAIT_SECONDS)
        finally:
            if len(self.ended) < len(self.steps):
                self._wait_for_answers()
                self.ctx.tasks.failed.set()
                self.ctx.backend.stop()
            for thread in threads.values():
                thread.join()
        for error in [*(e for e in self.errors if not isinstance(e, DrainedError)), *self.errors]:
            raise error

    def _wait_for_answers(self) -> None:
        """If the budget is used up: let steps finish the requests in flight, which are paid for."""
        until = time.monotonic() + ANSWER_SECONDS
        with self.changed:
            while self.ctx.over_budget and any(step.answers_due for step in self.steps):
                if time.monotonic() > until or not all(isinstance(error, DrainedError) for error in self.errors):
                    return
                self.changed.wait(WAIT_SECONDS)

    def _run_step(self, step: Step) -> None:
        try:
            step.run(self.ctx, lambda: self._add(self.begun, step))
            self._add(self.ended, step)
        except BaseException as error:  # noqa: BLE001 - raised again by `walk`
            with self.changed:
                self.errors.append(error)
                self.changed.notify()

    def _add(self, steps: set[Step], step: Step) -> None:
        with self.changed:
            steps.add(step)
            self.changed.notify()
