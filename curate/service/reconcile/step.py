"""One step of one run: look, decide, act, write. Every action may be repeated."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update

from curate.api import stop_environment
from curate.core.errors import CurateError, InputError, RunExistsError
from curate.service.database.models import IndexedRun, Submission
from curate.service.problems import Problem
from curate.service.reconcile import index, transitions
from curate.service.reconcile.hooks import Hooks
from curate.service.reconcile.leader import Leader
from curate.service.reconcile.observe import Memory, Run, answers, observe, one_line
from curate.service.reconcile.progress import Progress, alert
from curate.service.reconcile.queue import Verdict
from curate.service.reconcile.targets import Targets, discreet
from curate.service.states import Action, Record, State, Step, Timeouts, decide

if TYPE_CHECKING:
    from curate.service.service import Service

PROGRESS_SECONDS = 10.0
"""Between two looks at the events of a running run."""
MOST_WAIT = 15.0
"""Longest wait after an action that failed."""
HELD_SECONDS = 30.0
MOST_HELD = 600.0
"""A run that its target does not take waits so long before it is tried again: at first, and at most."""

UNREADABLE = (CurateError, ValueError, KeyError, TypeError)
"""A workspace that does not answer, or corrupt files in it."""

STOP_AGAIN_SECONDS = 15.0
"""Between two requests to the cluster to stop the same job."""
SERVICE = "service"

log = logging.getLogger(__name__)


class Stepper:
    """Thread-safe for different runs."""

    def __init__(self, service: Service, leader: Leader, hooks: Hooks, limits: Timeouts | None = None) -> None:
        self.service, self.leader, self.hooks, self.limits = service, leader, hooks, limits or Timeouts()
        self._lock = threading.Lock()
        self._lines: dict[tuple[int, str], dict[str, Any]] = {}
        """New values for the list of runs, written together."""

    def idle(self, run: Run, memory: Memory, verdict: Verdict | None) -> bool:
        """Whether there is nothing to do now: it waits, for the reason that it has, or for its next try."""
        if memory.clock() < memory.retry and self._circumstances(run) == memory.failed_with:
            return True
        waits = run.state is State.QUEUED and not run.row.request and not run.tried
        return waits and verdict is not None and not verdict.start and verdict.why == run.row.reason

    def step(self, run: Run, memory: Memory, verdict: Verdict | None) -> None:
        """Raises nothing."""
        try:
            if self.leader.leads:
                self._step(run, memory, verdict)
                memory.failures, memory.retry = 0, 0.0
        except Problem as problem:  # the database; nothing was written, and the next pass tries again
            log.warning("run %s: %s", run.row.attempt_id, problem)
        except CurateError as error:
            self._failed(run, memory, str(error))
        except Exception as error:  # a bug or an unknown error of a file system must not end the loop
            log.exception("run %s", run.row.attempt_id)
            self._failed(run, memory, f"{type(error).__name__}: {error}")

    def _step(self, run: Run, memory: Memory, verdict: Verdict | None) -> None:
        chosen, why = (verdict.start, verdict.why) if verdict is not None else (False, run.row.reason)
        seen = observe(run, memory, self.service.targets, chosen, why)
        step = decide(seen, self.limits)
        if not self.leader.leads:
            return
        if run.state is State.QUEUED and step.action is Action.SUBMIT:
            if transitions.write(self.service, run, step):  # first, so that a crash in between is not forgotten
                run.row.state, run.row.version = step.state.value, run.row.version + 1
                self._perform(step.action, run, memory)
            return
        self._perform(step.action, run, memory)
        self._write(run, memory, step)
        if step.state is State.RUNNING:
            self._progress(run, memory)

    def _perform(self, action: Action, run: Run, memory: Memory) -> None:
        if action is Action.NONE or (action is Action.STOP and memory.stopped == run.row.attempt_id):
            return
        resolved = self._resolved(run) if action is Action.SUBMIT else ""
        perform(action, run, memory, self.service.targets, resolved)
        memory.error = ""
        if action is Action.STOP:
            memory.stopped = run.row.attempt_id

    def _resolved(self, run: Run) -> str:
        with self.service.database.read() as session:
            return session.scalars(select(Submission.resolved).where(Submission.id == run.row.id)).one()

    def _write(self, run: Run, memory: Memory, step: Step) -> None:
        before = run.state
        ends = step.state.ended and step.state is not before
        begun = before is not State.QUEUED or run.tried
        totals = self._made(run) if ends and begun else None
        if not transitions.write(self.service, run, step, totals):
            return
        if step.state is not before:
            memory.error, memory.progress, memory.stages = "", None, 0
        if before is State.SUBMITTING and step.state is State.QUEUED:
            memory.thrown_back += 1
            memory.held = memory.clock() + min(MOST_HELD, HELD_SECONDS * 2 ** (memory.thrown_back - 1))
        if ends and not transitions.resubmitted(run.row, step):
            self.hooks.ended(run, step)

    def _made(self, run: Run) -> transitions.Totals | None:
        """Totals of an attempt that ends. Its datasets are indexed, before its end is written. None if they cannot be
        read, which must not keep the run from ending."""
        try:
            summary = run.workspace.summary(run.row.attempt_id)
            index.add_datasets(self.service, run.row.workspace_id, run.workspace, [(run.row.id, summary)])
        except Problem:
            raise
        except InputError:  # it never began
            return transitions.Totals()
        except UNREADABLE as error:
            log.warning("run %s: what it made is not indexed: %s", run.row.id, one_line(str(error)))
            return None
        return index.totals(summary)

    def _failed(self, run: Run, memory: Memory, error: str) -> None:
        """Keep the state, say why nothing happens, and wait longer each time."""
        memory.failures += 1
        memory.retry = memory.clock() + min(MOST_WAIT, 2.0**memory.failures)
        memory.error, memory.failed_with = one_line(discreet(run.target, error)), self._circumstances(run)
        log.warning("run %s: %s", run.row.attempt_id, one_line(error))
        with suppress(Problem):
            transitions.write(self.service, run, Step(run.state, reason=memory.error))

    def _circumstances(self, run: Run) -> tuple[str, bool]:
        """What an action may succeed after, once it has changed."""
        return run.row.request, answers(run, self.service.targets)

    # --- the list of runs, while they run ---

    def _progress(self, run: Run, memory: Memory) -> None:
        if memory.clock() < memory.look:
            return
        memory.look = memory.clock() + PROGRESS_SECONDS
        memory.progress = progress = memory.progress or Progress(memory.clock)
        try:
            attempt = run.workspace.run(run.row.attempt_id)
            memory.stages = memory.stages or len(attempt.ops())
            progress.read(attempt)
        except UNREADABLE as error:  # the run itself is not affected
            log.warning("run %s: its events were not read: %s", run.row.attempt_id, one_line(str(error)))
            return
        text = alert(progress.idle_seconds, self.service.settings.stalled_seconds, progress.budget)
        if text != run.row.alert:
            transitions.set_alert(self.service, run, text)
        shown = {
            "stages": memory.stages,
            "stages_done": len(progress.stages_done),
            "gpu_hours": run.row.gpu_hours + progress.gpu_seconds / 3600.0,
            "dollars": run.row.dollars + progress.dollars,
        }
        if shown != memory.shown:
            memory.shown = shown
            with self._lock:
                self._lines[run.row.workspace_id, run.row.id] = shown

    def flush(self) -> None:
        """Write what is new in the list of runs."""
        with self._lock:
            lines, self._lines = self._lines, {}
        if not lines:
            return
        with self.service.database.write() as session:
            for (workspace_id, run_id), values in lines.items():
                this = (IndexedRun.workspace_id == workspace_id, IndexedRun.id == run_id, IndexedRun.ended.is_(None))
                session.execute(update(IndexedRun).where(*this).values(**values))


# --- what is done to an attempt, in its workspace and on its cluster --------------------------------------------------


def perform(action: Action, run: Run, memory: Memory, targets: Targets, resolved: str) -> None:
    """Raises CurateError if the workspace or the cluster does not take it. `resolved`: the recipe, for SUBMIT."""
    if action is Action.SUBMIT:
        _submit(run, targets, resolved)
    elif action is Action.STOP:
        run.workspace.request_stop(run.row.attempt_id, run.row.requested_by or SERVICE)
    elif action is Action.KILL:
        _kill(run, memory, targets)
    elif action is Action.NEXT_ATTEMPT:
        run.workspace.request_kill(run.row.attempt_id, SERVICE)


def _submit(run: Run, targets: Targets, resolved: str) -> None:
    row, attempt, earlier = run.row, run.row.attempt_id, run.earlier_id
    run.workspace.check()  # or an empty folder would become the workspace while its file system is not mounted
    if earlier is not None and run.workspace.attempt(earlier).state in (Record.NONE, Record.OPEN):
        run.workspace.request_kill(earlier, SERVICE)
    about = {"run": row.id, "attempt": str(row.attempt), "user": run.user, "service": SERVICE}
    with suppress(RunExistsError):  # the id is ours; the file may come from another version of the service
        run.workspace.prepare(attempt, resolved, row.options, about)
    targets.cluster(run.target).submit(
        attempt, run.workspace.entrypoint(attempt), stop_environment(row.drain_seconds), {"curate_run": row.id}
    )


def _kill(run: Run, memory: Memory, targets: Targets) -> None:
    """By a file that the driver reads, and through Ray if it answers. The file is what counts."""
    attempt = run.row.attempt_id
    run.workspace.request_kill(attempt, run.row.requested_by or SERVICE)
    health, now = targets.health(run.target.name), memory.clock()
    if health is not None and not health.healthy:
        return
    if memory.job_stopped is not None and now - memory.job_stopped < STOP_AGAIN_SECONDS:
        return
    memory.job_stopped = now
    try:
        targets.cluster(run.target).stop(attempt)
    except CurateError as error:
        log.warning("run %s: its job was not stopped: %s", attempt, one_line(str(error)))
