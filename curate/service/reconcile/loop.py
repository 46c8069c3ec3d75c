"""The reconciler: looks at every run under way, decides, acts, writes.

Each run is a separate task: its failure becomes its reason, and it is tried again later. Each workspace has its own
threads, and targets that do not answer are not asked, so that neither delays other runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from sqlalchemy import or_, select
from sqlalchemy.orm import defer

from curate.api import Workspace
from curate.core.errors import CurateError
from curate.service.database.models import Submission, TargetRow, User, WorkspaceRow
from curate.service.problems import Problem
from curate.service.reconcile import index, queue, transitions
from curate.service.reconcile.hooks import Hooks
from curate.service.reconcile.leader import Leader
from curate.service.reconcile.observe import Memory, Run
from curate.service.reconcile.progress import Progress
from curate.service.reconcile.queue import UserQuota, Verdict
from curate.service.reconcile.step import Stepper
from curate.service.states import State

if TYPE_CHECKING:
    from curate.service.service import Service

HEALTH_SECONDS, SILENT_SECONDS = 10.0, 2.0
"""Between two checks of the targets; the second while one does not answer: its runs start soon after it does."""
DISCOVER_SECONDS = 60.0
RENEW_SECONDS = 5.0
"""Longest wait between two passes, each of which renews the lease."""
PASS_SECONDS = 2.0
"""Longest wait for the runs of a pass; slower ones continue beside the next pass."""
READERS = 16
"""Threads of a workspace."""
LOST_SECONDS = 3600.0
"""For so long a lost run without retries may turn out to be alive."""

log = logging.getLogger(__name__)


class Reconciler:
    """One per replica; the elected one acts."""

    def __init__(
        self,
        service: Service,
        clock: Callable[[], float] = time.monotonic,
        opened: Callable[[str], Workspace] = Workspace,
    ) -> None:
        """clock: of durations; opened: makes the workspace of a URL."""
        self.service, self._clock, self._open = service, clock, opened
        self.leader = Leader(service.database, clock=clock)
        self.hooks = Hooks(service)
        self.passes = self.failures = 0
        self._stepper = Stepper(service, self.leader, self.hooks)
        self._memories: dict[str, Memory] = {}
        self._busy: dict[str, Future[None]] = {}
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._workspaces: dict[str, Workspace] = {}
        self._led = False
        self._over = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []

    # --- threads ---

    def start(self) -> None:
        for name, work in (("health", self._health), ("index", self._index), ("loop", self._loop)):
            thread = threading.Thread(target=work, name=f"curate-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, seconds: float = 10.0) -> None:
        """End the threads, and let another replica take over at once."""
        self._over.set()
        self._wake.set()
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self.hooks.close()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        if self._led:
            self.leader.resign()

    def wake(self) -> None:
        """Begin the next pass now."""
        self._wake.set()

    def _loop(self) -> None:
        while not self._over.is_set():
            self._wake.clear()
            try:
                self.once()
            except Problem as problem:  # the database; nothing was written
                self.failures += 1
                log.warning("a pass of the reconciler failed: %s", problem)
            except Exception:  # the loop must not end
                self.failures += 1
                log.exception("a pass of the reconciler failed")
            self._wake.wait(min(self.service.settings.poll_seconds, RENEW_SECONDS))

    def _health(self) -> None:
        while not self._over.is_set():
            answer = True
            try:
                answer = self.check_targets()
            except Exception:  # the loop must not end
                log.exception("the targets were not checked")
            self._over.wait(HEALTH_SECONDS if answer else SILENT_SECONDS)

    def _index(self) -> None:
        while not self._over.is_set():
            try:
                if self.leads:
                    self.discover()
            except Exception:  # the loop must not end
                log.exception("the workspaces were not searched for runs")
            self._over.wait(DISCOVER_SECONDS if self._led else self.service.settings.poll_seconds)

    # --- what the threads do ---

    @property
    def leads(self) -> bool:
        return self.leader.leads

    def pass_age(self) -> float | None:
        """Seconds since some replica began a pass; None before one was seen."""
        return self.leader.still

    def progress(self) -> dict[str, Progress]:
        """What this replica knows of running runs; nothing unless it leads."""
        known = [(run, memory.progress) for run, memory in list(self._memories.items())]
        return {run: progress for run, progress in known if progress is not None}

    def check_targets(self) -> bool:
        """Whether all of them answer."""
        with self.service.database.read() as session:
            rows = list(session.scalars(select(TargetRow)))
        self.service.targets.refresh(rows)
        found = [self.service.targets.health(row.name) for row in rows]
        return all(health is None or health.healthy for health in found)

    def discover(self) -> None:
        """Index the runs and datasets that appeared in the workspaces."""
        with self.service.database.read() as session:
            rows = list(session.scalars(select(WorkspaceRow)))
        for row in rows:
            try:
                index.discover(self.service, row, self.opened(row.url))
            except CurateError as error:  # the others continue
                log.warning("workspace %s was not searched for runs: %s", row.name, error)

    def once(self) -> bool:
        """One pass. Whether this replica leads."""
        if not self.leader.renew():
            self._led = False
            self._memories.clear()
            return False
        if not self._led:
            self.hooks.repeat()
            self._led = True
        runs = self._read()
        known = {run.row.id for run in runs}
        self._memories = {run: memory for run, memory in self._memories.items() if run in known}
        for run in runs:
            self._memories.setdefault(run.row.id, Memory(self._clock))
        self._step([run for run in runs if run.state is not State.QUEUED], {})
        self._stepper.flush()  # an error of the queue, below, must not delay the runs under way
        on_gpus = queue.on_gpus(runs, self._memories)
        quotas = self._quotas([run for run in runs if run.state is State.QUEUED] + on_gpus)
        self._stop_beyond(quotas, on_gpus)
        verdicts = queue.verdicts(runs, self._memories, quotas, self.service.targets)
        self._step([run for run in runs if run.state is State.QUEUED], verdicts)
        self._stepper.flush()
        self.passes += 1
        return True

    def _read(self) -> list[Run]:
        """The runs to look at."""
        since = self.service.clock() - LOST_SECONDS
        alive = [state.value for state in State if not state.ended]
        again = Submission.lost <= Submission.retries
        lost = (Submission.state == State.LOST.value) & or_(again, Submission.since >= since)
        chosen = (
            select(Submission, WorkspaceRow, TargetRow, User.name)
            .join(WorkspaceRow, Submission.workspace_id == WorkspaceRow.id)
            .join(TargetRow, Submission.target_id == TargetRow.id)
            .join(User, Submission.user_id == User.id)
            .where(or_(Submission.state.in_(alive), lost))
            .options(defer(Submission.recipe), defer(Submission.resolved))
        )
        with self.service.database.read() as session:
            found = list(session.execute(chosen))
            tried = queue.tried(session, [row for row, *_ in found])
        return [
            Run(row, self.opened(place.url), place.name, target, user, row.id in tried)
            for row, place, target, user in found
        ]

    def _quotas(self, runs: list[Run]) -> dict[str, UserQuota]:
        if not runs:
            return {}
        with self.service.database.read() as session:
            return queue.allowances(session, {run.user for run in runs}, self.service.clock())

    def _stop_beyond(self, quotas: dict[str, UserQuota], runs: list[Run]) -> None:
        """Stop runs on GPUs whose users have no GPU-hours left, or one endless run would have no limit."""
        for run in runs:
            why = quotas[run.user].spent if run.user in quotas and not run.row.request else ""
            if why:
                transitions.request_stop(self.service, run, queue.QUOTA, f"{run.user} {why}")

    def _step(self, runs: list[Run], verdicts: dict[str, Verdict]) -> None:
        """A step of each run that is not still at its last one, in the threads of its workspace."""
        self._busy = {run: task for run, task in self._busy.items() if not task.done()}
        begun = []
        for run in runs:
            name = run.row.id
            if name in self._busy:
                continue
            work = (run, self._memories[name], verdicts.get(name))
            if self._stepper.idle(*work):
                continue
            task = self._busy[name] = self._pool(run.workspace.url).submit(self._stepper.step, *work)
            begun.append(task)
        futures.wait(begun, PASS_SECONDS)

    def opened(self, url: str) -> Workspace:
        if url not in self._workspaces:
            self._workspaces[url] = self._open(url)
        return self._workspaces[url]

    def _pool(self, url: str) -> ThreadPoolExecutor:
        if url not in self._pools:
            self._pools[url] = ThreadPoolExecutor(READERS, thread_name_prefix="curate-run")
        return self._pools[url]
