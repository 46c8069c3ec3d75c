"""What a scrape says about runs and targets: from the database, and from what this process knows anyway. A scrape reads
no workspace and asks no cluster.

Every replica tells the same about runs; take `max` over replicas. Stages have metrics only while their run is running,
so that the number of series is bounded by what runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from curate.service.database.models import IndexedRun, Submission, TargetRow, WorkspaceRow
from curate.service.problems import UnavailableProblem
from curate.service.reconcile.progress import Progress
from curate.service.service import Service
from curate.service.states import ACTIVE, State

LANE = ["workspace", "run", "stage", "lane"]
Value = tuple[list[str], float]


class Loop(Protocol):
    """What the reconciler of this process tells about itself."""

    passes: int
    failures: int

    @property
    def leads(self) -> bool: ...

    def pass_age(self) -> float | None:
        """Seconds since some replica completed a pass, as far as this process has seen one."""

    def progress(self) -> dict[str, Progress]:
        """Run -> its progress, while it runs; nothing unless this replica leads."""


class ServiceCollector(Collector):
    def __init__(self, service: Service, loop: Loop | None = None) -> None:
        self.service, self.loop = service, loop

    def describe(self) -> Iterable[Metric]:
        return []  # nothing is collected when the collector is registered

    def collect(self) -> Iterator[Metric]:
        reachable = True
        try:
            with self.service.database.read() as session:
                found = [*_runs(session), *_queue(session, self.service.clock()), *_spent(session)]
                targets = list(session.scalars(select(TargetRow)))
                running = {row.id: row.name for row in session.execute(_RUNNING)}
            yield from found
            yield from self._targets(targets)
            yield from self._lanes(running)
        except UnavailableProblem:
            reachable = False
        yield _gauge("curate_database_up", "Whether the database answered this scrape.", [], [([], reachable)])
        yield from self._loop()

    def _targets(self, targets: Iterable[TargetRow]) -> Iterator[Metric]:
        known = {row.name: self.service.targets.health(row.name) for row in targets}
        seen = {name: health for name, health in known.items() if health is not None}
        for name, text, field in _HEALTH:
            values: list[Value] = [([target], float(getattr(health, field))) for target, health in seen.items()]
            yield _gauge(f"curate_target_{name}", text, ["target"], values)

    def _lanes(self, workspaces: dict[str, str]) -> Iterator[Metric]:
        """Progress by lane. `workspaces`: running run -> its workspace."""
        rows, rates, busy, budgets = list[Value](), list[Value](), list[Value](), list[Value]()
        known = self.loop.progress() if self.loop is not None else {}
        for run, progress in known.items():
            if run not in workspaces:
                continue
            budgets.append(([workspaces[run], run], progress.budget))
            for (stage, lane), measured in list(progress.lanes.items()):
                labels = [workspaces[run], run, stage, lane]
                rows.append((labels, measured.get("rows", 0) - measured.get("lost", 0)))
                rates.append((labels, measured.get("rows_per_s", 0.0)))
                if measured.get("busy") is not None:
                    busy.append((labels, measured["busy"]))
        yield _gauge("curate_run_failure_budget_ratio", "Used share of the failure budget.", LANE[:2], budgets)
        yield _gauge("curate_run_lane_rows", "Rows that a lane of a running stage has done.", LANE, rows)
        yield _gauge("curate_run_lane_rows_per_second", "Over the last half minute.", LANE, rates)
        yield _gauge("curate_run_lane_busy_ratio", "Share of the lane's workers that work.", LANE, busy)

    def _loop(self) -> Iterator[Metric]:
        if self.loop is None:
            return
        yield _gauge("curate_leader", "Whether this replica reconciles.", [], [([], self.loop.leads)])
        age = self.loop.pass_age()
        values: list[Value] = [([], age)] if age is not None else []
        yield _gauge("curate_reconciler_pass_age_seconds", "Since some replica completed a pass.", [], values)
        yield _counter("curate_reconciler_passes", "Passes of this replica.", [], [([], self.loop.passes)])
        yield _counter("curate_reconciler_failures", "Passes that failed here.", [], [([], self.loop.failures)])


_RUNNING = (
    select(Submission.id, WorkspaceRow.name)
    .join_from(Submission, WorkspaceRow, Submission.workspace_id == WorkspaceRow.id)
    .where(Submission.state.in_([State.RUNNING.value, State.STOPPING.value]))
)

_HEALTH = (
    ("up", "Whether the target answered when it was last asked.", "healthy"),
    ("nodes", "Nodes of the cluster.", "nodes"),
    ("cpus", "CPUs of the cluster.", "cpus"),
    ("gpus", "GPUs of the cluster.", "gpus"),
    ("free_cpus", "CPUs that nothing uses.", "free_cpus"),
    ("free_gpus", "GPUs that nothing uses.", "free_gpus"),
)


def _runs(session: Session) -> Iterator[Metric]:
    counts = session.execute(
        select(WorkspaceRow.name, IndexedRun.state, func.count())
        .join_from(IndexedRun, WorkspaceRow, IndexedRun.workspace_id == WorkspaceRow.id)
        .group_by(WorkspaceRow.name, IndexedRun.state)
    )
    values: list[Value] = [([workspace, state], count) for workspace, state, count in counts]
    yield _gauge("curate_runs", "Runs of the index, by state.", ["workspace", "state"], values)
    alerts = session.execute(
        select(WorkspaceRow.name, Submission.id, Submission.alert)
        .join_from(Submission, WorkspaceRow, Submission.workspace_id == WorkspaceRow.id)
        .where(Submission.alert != "", Submission.state.in_(ACTIVE))
    )
    values = [([workspace, run, kind], 1.0) for workspace, run, text in alerts for kind in kinds(text)]
    yield _gauge("curate_run_alert", "Runs that stalled or lose too much.", ["workspace", "run", "alert"], values)


def kinds(alert: str) -> list[str]:
    """What an alert's text (`reconcile.alerts`) is about."""
    return [kind for kind, words in {"stalled": "no progress", "failure_budget": "budget"}.items() if words in alert]


def _queue(session: Session, now: float) -> Iterator[Metric]:
    names = session.scalars(select(TargetRow.name)).all()
    states = (State.QUEUED.value, *ACTIVE)
    found = session.execute(
        select(TargetRow.name, Submission.state, func.count(), func.min(Submission.queued))
        .join_from(Submission, TargetRow, Submission.target_id == TargetRow.id)
        .where(Submission.state.in_(states))  # by their index: submissions that have ended are not read
        .group_by(TargetRow.name, Submission.state)
    ).all()
    waiting = {target: (count, since) for target, state, count, since in found if state == State.QUEUED.value}
    active: Counter[str] = Counter()
    for target, state, count, _ in found:
        active[target] += 0 if state == State.QUEUED.value else count
    counts: list[Value] = [([name], waiting.get(name, (0, None))[0]) for name in names]
    oldest: list[Value] = [([name], max(0.0, now - waiting[name][1]) if name in waiting else 0.0) for name in names]
    yield _gauge("curate_queued_runs", "Runs that wait.", ["target"], counts)
    yield _gauge("curate_queued_oldest_seconds", "How long the oldest one has waited.", ["target"], oldest)
    values: list[Value] = [([name], active[name]) for name in names]
    yield _gauge("curate_active_runs", "Runs that occupy a target.", ["target"], values)


def _spent(session: Session) -> Iterator[Metric]:
    hours, dollars, tokens = list[Value](), list[Value](), list[Value]()
    sums = session.execute(
        select(
            WorkspaceRow.name, func.sum(Submission.gpu_hours), func.sum(Submission.dollars), func.sum(Submission.tokens)
        )
        .join_from(Submission, WorkspaceRow, Submission.workspace_id == WorkspaceRow.id)
        .group_by(WorkspaceRow.name)
    )
    for workspace, used, paid, asked in sums:
        hours.append(([workspace], 3600 * used))
        dollars.append(([workspace], paid))
        tokens.append(([workspace], asked))
    yield _counter("curate_gpu_seconds", "GPU time of submitted runs.", ["workspace"], hours)
    yield _counter("curate_endpoint_dollars", "Spent at endpoints by submitted runs.", ["workspace"], dollars)
    yield _counter("curate_endpoint_tokens", "Tokens of endpoints, of submitted runs.", ["workspace"], tokens)


def _gauge(name: str, text: str, labels: list[str], values: Iterable[Value]) -> Metric:
    made = GaugeMetricFamily(name, text, labels=labels)
    for given, value in values:
        made.add_metric(given, float(value))
    return made


def _counter(name: str, text: str, labels: list[str], values: Iterable[Value]) -> Metric:
    made = CounterMetricFamily(name, text, labels=labels)
    for given, value in values:
        made.add_metric(given, float(value))
    return made
