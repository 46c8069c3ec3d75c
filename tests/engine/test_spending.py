"""What runs spend at endpoints: counted as the endpoint counts it, and never far above a ceiling."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from curate.api import Workspace
from curate.caption.report.report import CaptionReport
from curate.core.errors import CeilingError, DrainedError, PreflightError, RecipeError
from curate.core.recipe.pipeline import Pipeline
from curate.core.spend import ELSEWHERE, Spend, estimate
from curate.core.store.storage import open_storage, open_workspace
from curate.engine.record import limits
from curate.engine.record.events import Events
from curate.engine.record.runs import RunRecord
from curate.engine.record.status import status_of
from curate.engine.record.summary import summary
from curate.engine.run import Result, run
from curate.engine.spending import Spending
from curate.engine.state import Options
from curate.engine.workers.scheduler import Scheduler
from curate.service.reconcile.progress import Progress
from tests.e2e.commands import curate
from tests.engine import paid, toys
from tests.engine.paid import NAME, PRICE, Dies, Paid, described, seen
from tests.servers.scripted import Endpoint

EACH = 5
"""Tokens of a request and its answer here: `picture 12` and `said picture 12`."""
RESERVED = 40
"""More than what is reserved for one: its body by its length, and max_tokens."""


def stopped(pipeline: Pipeline, workspace: Path, run_id: str, **options: Any) -> str:
    """The error of a run that reached its ceiling."""
    with pytest.raises(DrainedError) as error:
        run(pipeline, str(workspace), options=Options(**options), run_id=run_id)
    return str(error.value)


def record(workspace: Path, run_id: str) -> RunRecord:
    return RunRecord.load(open_storage(str(workspace)), run_id)


# --- what was spent ---


def test_a_run_counts_what_the_endpoint_counted(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    result = run(paid.chain(script, {"price": PRICE}, rows=40, shard_rows=16), str(workspace), run_id="one")
    assert paid.spent(result) == seen(script)
    requests, tokens_in, tokens_out = seen(script)
    assert requests == 40 and list(result.spend.stages) == ["stage_1"]
    whole = result.spend.total
    assert whole.dollars == pytest.approx((2.0 * tokens_in + 10.0 * tokens_out) / 1e6) and not whole.estimated
    assert result.stages()["stage_1"]["spend"][NAME]["requests"] == 40
    status = status_of(record(workspace, "one"))
    assert status.spend == result.spend == Workspace(str(workspace)).run("one").wait().spend
    assert [event["stages"] for event in record(workspace, "one").events if event["event"] == "spend"]
    again = run(paid.chain(script, {"price": PRICE}, rows=40, shard_rows=16), str(workspace))
    assert not again.spend.stages and seen(script)[0] == 40


def test_requests_that_fail_count_too(workspace: Path, endpoint: Endpoint) -> None:
    """A run without a price says so."""
    script = endpoint.script(faults=[{"text": "picture 3", "status": 503, "times": 2}])
    result = run(paid.chain(script, rows=6), str(workspace))
    assert result.spend.total.requests == seen(script)[0] == 8
    assert result.spend.total.dollars is None


def test_stages_are_counted_apart(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    first = Paid(endpoints=described(script, price=PRICE))
    second = Paid(endpoints=described(script, price=PRICE), column="told", output="retold", every=2)
    result = run(toys.chain(first, second, rows=20, shard_rows=10), str(workspace))
    stages = result.spend.stages
    assert (stages["stage_1"][NAME].requests, stages["stage_2"][NAME].requests) == (20, 10)
    assert result.spend.endpoints[NAME].requests == seen(script)[0] == 30


def test_requests_of_workers_that_died_are_known_to_the_limiter() -> None:
    """They are counted under no stage; what the workers have reported is not counted twice."""

    class Workers:
        has_limiter = True

        def __init__(self) -> None:
            self.meter = self.limiter = self

        def spend(self) -> dict[str, dict[str, Spend]]:
            return {
                "a": {"x": Spend(3, 30, 10, dollars=3.0)},
                "b": {"x": Spend(2, 20, 5, dollars=2.0), "z": Spend(1, 10, 2)},
            }

        def spent(self) -> dict[str, Spend]:
            return {"x": Spend(7, 70, 20, 2, dollars=7.0), "y": Spend(0, 0, 0), "z": Spend(1, 12, 3, 1)}

    found = Spending(Options(), cast(Scheduler, Workers()), cast(Events, None)).spent()
    assert found.stages[ELSEWHERE] == {"x": Spend(2, 20, 5, 2, dollars=2.0)}
    assert found.total == Spend(8, 80, 22, 2, dollars=7.0)


@pytest.mark.long
def test_every_figure_is_what_the_endpoint_reported(
    workspace: Path, endpoint: Endpoint, on_ray: Any, tmp_path: Path
) -> None:
    """To the cent, though a worker is killed and what it had not logged is paid for twice. Only the request that it had
    in flight is an estimate, which stays apart."""
    price = {"input": 2e4, "output": 1e5}
    script = endpoint.script(faults=[{"text": "picture 7", "do": "stall", "times": 1}])
    made = toys.chain(Dies(endpoints=described(script, price=price), folder=str(tmp_path)), rows=12, shard_rows=12)
    made.add("report", CaptionReport(), "stage_1").check()
    with ThreadPoolExecutor() as thread:
        running = thread.submit(run, made, str(workspace), engine=on_ray, run_id="one")
        until = time.monotonic() + 60.0
        while not (workspace / "runs/one/run.json").exists() or record(workspace, "one").spend().total.requests < 11:
            assert time.monotonic() < until and not running.done()
            time.sleep(0.1)
        (tmp_path / "die").touch()
        result = running.result()
    requests, tokens_in, tokens_out = seen(script)
    dollars = (price["input"] * tokens_in + price["output"] * tokens_out) / 1e6
    whole, known = result.spend.total, record(workspace, "one")
    assert 12 < requests == whole.requests == script.stats()["answered"] + 1 and whole.estimated == 1
    assert (whole.prompt_tokens, whole.completion_tokens) == (tokens_in, tokens_out) and whole.estimated_dollars > 0.0
    told = Progress()
    for event in known.events:
        told.add(event)
    page = (Path(result.outputs["report"]) / "index.html").read_text()
    api = Workspace(str(workspace)).run("one")
    figures = [whole.dollars, told.dollars, summary(known.storage, "one").dollars, api.status().spend.total.dollars]
    assert [f"{figure:.2f}" for figure in figures] == [f"{dollars:.2f}"] * 4
    assert f"${dollars:.2f}" in page and f"${dollars:.2f}" in curate("status", "one", "-w", str(workspace)).words
    assert estimate(whole) in page


# --- ceilings ---


@pytest.mark.long
@pytest.mark.parametrize(("option", "ceiling"), [("max_tokens", 30 * EACH), ("max_dollars", 30 * EACH * 6e-6)])
def test_a_ceiling_stops_the_run_and_a_larger_one_resumes(
    workspace: Path, endpoint: Endpoint, option: str, ceiling: float
) -> None:
    """Both runs together send each request once."""
    script = endpoint.script(latency_seconds=0.02)

    def made() -> Pipeline:
        return paid.chain(script, {"price": PRICE, "max_in_flight": 4}, rows=100, shard_rows=10)

    error = stopped(made(), workspace, "one", **{option: ceiling})
    requests, *tokens = seen(script)
    assert f"--{option.replace('_', '-')} is " in error and error.startswith("stopped: ")
    assert "the same command resumes from there, and may spend as much again" in error and "\n" not in error
    assert 0 < sum(tokens) <= 30 * EACH and requests < 100
    first = status_of(record(workspace, "one"))
    assert (first.state, first.error) == ("stopped", error)
    with pytest.raises(CeilingError):
        Workspace(str(workspace)).run("one").wait()
    assert (first.spend.total.requests, first.spend.total.tokens) == (requests, sum(tokens))
    result = run(made(), str(workspace), options=Options(**{option: 100 * ceiling}), run_id="two")
    assert script.stats()["texts"] == {f"picture {n}": 1 for n in range(100)}
    assert result.ledger["stage_1"].after == 100
    assert result.spend.total.requests + requests == 100


def test_a_ceiling_below_what_one_request_may_take_says_so(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    error = stopped(paid.chain(script, {"price": PRICE}, rows=4), workspace, "one", max_tokens=3)
    assert "less than one request may take with its `max_tokens`; raise it" in error
    assert script.stats()["requests"] == 0


def test_a_run_that_uses_its_last_token_is_complete(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    plain = run(paid.chain(script, rows=12), str(workspace / "first")).spend.total.tokens
    result = run(paid.chain(script, rows=12), str(workspace / "other"), options=Options(max_tokens=plain + RESERVED))
    assert result.ledger["stage_1"].after == 12 and result.spend.total.tokens == plain


def test_answers_in_flight_are_kept_when_the_ceiling_is_reached(workspace: Path, endpoint: Endpoint) -> None:
    """In all units and stages that still wait for some, however long these take."""
    script = endpoint.script(latency_seconds=0.3)
    quick = endpoint.script()
    slow = Paid(endpoints=described(script, max_in_flight=8), output="slow")
    other = Paid(endpoints={"quick": described(quick)[NAME]}, column="caption", output="fast", words=50)
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=200, shard_rows=20))
    made.add("slow", slow, "pool").add("fast", other, "pool")
    stopped(made.check(), workspace, "one", max_tokens=600)
    rows = answer_rows_of(workspace, "slow")
    assert len(rows) == script.stats()["answered"] == script.stats()["requests"]
    assert record(workspace, "one").spend().total.requests == seen(script)[0] + seen(quick)[0]


def answer_rows_of(workspace: Path, column: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    tables = [pq.read_table(path) for path in workspace.glob("facts/toy.paid/*/*/*/*.parquet")]
    return [row for table in tables if column in table.column_names for row in table.to_pylist()]


def test_the_ledger_of_a_resumed_run_adds_up(workspace: Path, endpoint: Endpoint) -> None:
    """As often as it is stopped: each run has its own ceiling."""
    script = endpoint.script()
    made = paid.chain(script, {"max_in_flight": 2}, rows=60, shard_rows=20)
    runs = 0
    result: Result | None = None
    while result is None:
        try:
            result = run(made, str(workspace), options=Options(max_tokens=20 * EACH), run_id=f"run-{runs}")
        except DrainedError:
            runs += 1
    assert 2 <= runs <= 6 and script.stats()["texts"] == {f"picture {n}": 1 for n in range(60)}
    entry = result.ledger["stage_1"]
    assert (entry.before, entry.after, entry.lost.total()) == (60, 60, 0)
    every = [record(workspace, f"run-{number}").spend().total.requests for number in range(runs + 1)]
    assert sum(every) == 60


def test_a_ceiling_can_be_changed_while_the_run_runs(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script(latency_seconds=0.02)
    made = paid.chain(script, {"max_in_flight": 2}, rows=400, shard_rows=50)
    limits.request(open_workspace(str(workspace)), "one", {"max_tokens": 100})  # the driver looks for it every 2 s
    said = stopped(made, workspace, "one", max_tokens=10**9)
    assert said.startswith("stopped: ") and "--max-tokens is 100; " in said
    status = status_of(record(workspace, "one"))
    assert status.ceilings.tokens == 100 and 0 < status.spend.total.requests == seen(script)[0] < 400


# --- ceilings that cannot be kept ---


def test_dollars_need_a_price(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    with pytest.raises(PreflightError) as error:
        run(paid.chain(script, rows=6), str(workspace), options=Options(max_dollars=1.0))
    assert str(error.value) == (
        "pipeline: stage_1: --max-dollars: endpoint scripted has no price; add `price: {input: ..., output: ...}` "
        "(dollars per million tokens) to it, or give --max-tokens"
    )
    assert seen(script)[0] == 0 and not workspace.exists()


def test_a_name_stands_for_one_endpoint(workspace: Path, endpoint: Endpoint) -> None:
    """Its limits and its price are those of the run."""
    script = endpoint.script()
    stages = [Paid(endpoints=described(script, price={"input": 1.0, "output": 2.0 * n}), words=n) for n in (1, 2)]
    stages[1] = stages[1].model_copy(update={"output": "other"})
    with pytest.raises(RecipeError) as error:
        run(toys.chain(*stages, rows=6), str(workspace), options=Options(max_dollars=1.0))
    assert str(error.value) == (
        "pipeline: stage_2: endpoint scripted has other limits or another price than that of stage_1; "
        "give the two endpoints different names"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_tokens": 0}, "--max-tokens 0: expected a number above 0; leave it out for no ceiling"),
        ({"max_dollars": -1.5}, "--max-dollars -1.5: expected a number above 0; leave it out for no ceiling"),
        ({"max_tokens": 5}, "--max-tokens: no stage of the recipe asks an endpoint by name; leave it out"),
    ],
)
def test_ceilings_that_mean_nothing(workspace: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError) as error:
        run(toys.chain(toys.Brightness()), str(workspace), options=Options(**options))
    assert str(error.value) == said


def test_the_record_names_endpoints_and_prices(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    run(paid.chain(script, {"price": PRICE, "requests_per_minute": 6000}, rows=4), str(workspace), run_id="one")
    about = json.loads((workspace / "runs/one/run.json").read_text())["endpoints"]
    limits = {"requests_per_minute": 6000.0, "tokens_per_minute": None}
    assert about == {NAME: {"model": "scripted", "price": PRICE, **limits}}
