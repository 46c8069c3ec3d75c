"""What is done to an attempt, in its workspace and on its cluster. Every action may be repeated."""

from __future__ import annotations

import logging
from contextlib import suppress

from curate.api import stop_environment
from curate.core.errors import CurateError, RunExistsError
from curate.service.reconcile.observe import Memory, Run, one_line
from curate.service.reconcile.targets import Targets
from curate.service.states import Action, Record

STOP_AGAIN_SECONDS = 15.0
"""Between two requests to the cluster to stop the same job."""
SERVICE = "service"

log = logging.getLogger(__name__)


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
