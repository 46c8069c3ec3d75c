"""What a scrape says, and that it stays small."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sse_starlette import EventSourceResponse

from curate.service.database.models import Submission, User
from curate.service.operate.collector import kinds
from curate.service.operate.metrics import Metrics, MetricsMiddleware
from curate.service.problems import ConflictProblem
from curate.service.reconcile.progress import Progress, alert
from curate.service.reconcile.targets import Health
from curate.service.service import Service
from tests.service.curated import Curated
from tests.service.people import People

Labels = tuple[tuple[str, str], ...]


class Loop:
    """A reconciler that leads, and knows the progress of a run."""

    leads, passes, failures = True, 7, 1

    def __init__(self) -> None:
        self.known = Progress(budget=0.5)
        self.known.add({"event": "progress", "stage": "embed", "lane": "gpu", "rows": 90, "lost": 4, "rows_per_s": 3.5})
        self.known.add({"event": "progress", "stage": "old", "lane": "cpu", "rows": 9, "busy": 0.5})

    def pass_age(self) -> float | None:
        return 1.5

    def progress(self) -> dict[str, Progress]:
        return {"r-running": self.known, "r-elsewhere": self.known}


def read(metrics: Metrics) -> dict[str, dict[Labels, float]]:
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def labels(**given: str) -> Labels:
    return tuple(sorted(given.items()))


def submit(service: Service, people: People, state: str, **values: object) -> None:
    about: dict[str, object] = {"recipe": "{}", "resolved": "{}", "created": 1.0, "since": 1.0, "queued": 1.0}
    with service.database.write() as session:
        row = Submission(
            **{
                "id": f"r-{state}", "state": state, "workspace_id": people.workspace.id,
                "target_id": people.target.id, "user_id": people.operator.principal.user_id, **about, **values,
            }
        )  # fmt: skip
        session.add(row)


def test_runs_queue_and_spending(service: Service, people: People, curated: Curated) -> None:
    now = service.clock()
    submit(service, people, "queued", queued=now - 500)
    submit(service, people, "running", gpu_hours=2.0, dollars=3.5, tokens=11, alert=alert(7200, 1800, 0.9))
    submit(service, people, "done", gpu_hours=1.0, alert="no progress for 2 h")
    found = read(Metrics(service))
    assert found["curate_runs"] == {labels(workspace="main", state="done"): 1}
    assert found["curate_queued_runs"] == {labels(target="local"): 1}
    assert found["curate_queued_oldest_seconds"][labels(target="local")] == pytest.approx(500, abs=60)
    assert found["curate_active_runs"] == {labels(target="local"): 1}
    assert found["curate_gpu_seconds_total"] == {labels(workspace="main"): 3 * 3600}
    assert found["curate_endpoint_dollars_total"] == {labels(workspace="main"): 3.5}
    assert found["curate_endpoint_tokens_total"] == {labels(workspace="main"): 11}
    assert set(found["curate_run_alert"]) == {
        labels(workspace="main", run="r-running", alert=kind) for kind in ("stalled", "failure_budget")
    }
    assert found["curate_database_up"] == {(): 1}


def test_an_idle_target_is_there_with_zeros(service: Service, people: People) -> None:
    found = read(Metrics(service))
    for name in ("curate_queued_runs", "curate_queued_oldest_seconds", "curate_active_runs"):
        assert found[name] == {labels(target="local"): 0}


def test_alerts_keep_their_kinds() -> None:
    """The text of an alert is for people; rules depend on its kind."""
    assert [kinds(alert(*given)) for given in ((0, 1, 0.0), (100, 1, 0.0), (0, 1, 0.8), (100, 1, 1.0))] == [
        [], ["stalled"], ["failure_budget"], ["stalled", "failure_budget"],
    ]  # fmt: skip


def test_targets_as_they_were_last_seen(service: Service, people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "curate_target_up" not in read(Metrics(service))  # before the first check
    seen = Health.model_validate({"healthy": True, "checked": 1.0, "nodes": 3, "cpus": 8, "free_gpus": 1.5})
    monkeypatch.setattr(service.targets, "health", {"local": seen}.get)
    found, of = read(Metrics(service)), labels(target="local")
    assert (found["curate_target_up"][of], found["curate_target_nodes"][of]) == (1, 3)
    assert (found["curate_target_cpus"][of], found["curate_target_free_gpus"][of]) == (8, 1.5)


def test_lanes_of_running_runs_only(service: Service, people: People) -> None:
    submit(service, people, "running")
    loop = Loop()
    found = read(Metrics(service, loop))
    gpu = labels(workspace="main", run="r-running", stage="embed", lane="gpu")
    cpu = labels(workspace="main", run="r-running", stage="old", lane="cpu")
    assert found["curate_run_lane_rows"] == {gpu: 86, cpu: 9}
    assert found["curate_run_lane_rows_per_second"][gpu] == 3.5
    assert found["curate_run_lane_busy_ratio"] == {cpu: 0.5}
    assert found["curate_run_failure_budget_ratio"] == {labels(workspace="main", run="r-running"): 0.5}
    loop.known.add({"event": "stage", "stage": "old"})
    assert set(read(Metrics(service, loop))["curate_run_lane_rows"]) == {gpu}


def test_the_reconciler_of_this_replica(service: Service) -> None:
    found = read(Metrics(service, Loop()))
    assert found["curate_leader"] == {(): 1} and found["curate_reconciler_pass_age_seconds"] == {(): 1.5}
    assert found["curate_reconciler_passes_total"] == {(): 7} and found["curate_reconciler_failures_total"] == {(): 1}


def test_a_scrape_works_while_the_database_does_not(service: Service) -> None:
    metrics = Metrics(service, Loop())
    with service.database.engine.begin() as connection:
        connection.exec_driver_sql("drop table submissions")
    found = read(metrics)
    assert found["curate_database_up"] == {(): 0}
    assert read(metrics)["curate_database_errors_total"][()] >= 1
    assert found["curate_leader"] == {(): 1} and "curate_runs" not in found


def test_a_broken_rule_is_not_an_error_of_the_database(service: Service) -> None:
    metrics = Metrics(service)
    for _ in range(2):
        with contextlib.suppress(ConflictProblem), service.database.write() as session:
            session.add(User(name="same", created=1.0))
    assert read(metrics)["curate_database_errors_total"] == {(): 0}


def test_a_scrape_reads_no_workspace(service: Service, people: People, curated: Curated) -> None:
    submit(service, people, "running")
    metrics = Metrics(service, Loop())
    before = read(metrics)["curate_runs"]
    shutil.rmtree(curated.workspace.url)
    assert before and read(metrics)["curate_runs"] == before


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(service: Service) -> Iterator[tuple[TestClient, Metrics]]:
    """An application with routes of all kinds."""
    router, metrics = APIRouter(), Metrics(service)

    @router.get("/runs/{run}")
    def run(run: str) -> str:
        if run == "broken":
            raise RuntimeError("a bug")
        return run

    @router.get("/stream")
    async def stream() -> EventSourceResponse:
        async def events() -> object:
            assert read(metrics)["curate_event_streams"] == {(): 1}
            yield {"data": "x"}

        return EventSourceResponse(events())

    app = FastAPI()
    app.include_router(router, prefix="/api/v1")
    app.add_middleware(MetricsMiddleware, metrics=metrics)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client, metrics


def test_requests_are_counted_by_the_template_of_their_route(measured: tuple[TestClient, Metrics]) -> None:
    client, metrics = measured
    for path in ("r1", "r2", "%7Brun%7D", "a%20b"):
        assert client.get(f"/api/v1/runs/{path}").status_code == 200
    client.get("/api/v1/runs/broken")
    client.post("/api/v1/runs/r1")
    client.get("/api/v1/runs/a/b")
    client.request("BREW", "/api/v1/nothing")
    counts = read(metrics)["curate_http_requests_total"]
    route = "/api/v1/runs/{run}"
    assert counts[labels(route=route, method="GET", status="200")] == 4
    assert counts[labels(route=route, method="GET", status="500")] == 1
    assert counts[labels(route="other", method="GET", status="404")] == 1
    assert counts[labels(route="other", method="other", status="404")] == 1
    assert len({dict(one)["route"] for one in counts}) <= 3
    seconds = read(metrics)["curate_http_request_seconds_count"]
    assert seconds[labels(route=route, method="GET")] == 5


def test_a_stream_counts_while_it_is_open_and_not_as_slow(measured: tuple[TestClient, Metrics]) -> None:
    client, metrics = measured
    began = time.monotonic()
    with client.stream("GET", "/api/v1/stream") as answer:
        assert answer.status_code == 200 and b"data: x" in answer.read()
    took = time.monotonic() - began
    found = read(metrics)
    assert found["curate_event_streams"] == {(): 0}
    assert found["curate_http_request_seconds_sum"][labels(route="/api/v1/stream", method="GET")] <= took
