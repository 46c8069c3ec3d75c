"""`curate plan --measure`: asks few rows, and a run does not ask them again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from curate.api import Cost, Workspace
from curate.core.errors import PreflightError, RecipeError
from curate.core.recipe.pipeline import Pipeline
from curate.engine.plan.cost import _margin
from curate.engine.run import run
from tests.engine import paid, toys
from tests.engine.paid import NAME, PRICE, Paid, Third, described, seen
from tests.servers.scripted import Endpoint, Scripted


def measured(pipeline: Pipeline, workspace: Path, rows: int) -> dict[str, Cost]:
    _, costs = Workspace(str(workspace)).measure(pipeline, rows)
    return {cost.stage: cost for cost in costs}


def filtered(script: Scripted, words: int = 0) -> Pipeline:
    """Numbers -> brightness -> every third -> a stage that asks."""
    ask = Paid(endpoints=described(script, price=PRICE), words=words)
    return toys.chain(toys.Brightness(), Third(), ask, rows=300, shard_rows=50)


def test_measured_rows_are_not_asked_again(workspace: Path, endpoint: Endpoint) -> None:
    """On an empty workspace: the pool is begun, and facts upstream exist for few rows."""
    script = endpoint.script()
    made = filtered(script)
    costs = measured(made, workspace, 20)
    cost = costs["stage_3"]
    requests, *tokens = seen(script)
    assert cost.asked == cost.spend.requests == requests == 20 and cost.spend.tokens == sum(tokens)
    assert cost.spend.dollars == pytest.approx((2.0 * tokens[0] + 10.0 * tokens[1]) / 1e6)
    assert not list(workspace.glob("masks/**/*")) and not list(workspace.glob("runs/*/run.json"))
    result = run(made, str(workspace))
    assert set(script.stats()["texts"].values()) == {1}
    assert script.stats()["requests"] == result.ledger["stage_3"].after == 100
    assert result.counts["stage_3"].computed == 80


def test_what_is_left_is_estimated(workspace: Path, endpoint: Endpoint) -> None:
    """From the share of the measured rows that reach the stage; exact once the masks upstream are known."""
    script = endpoint.script()
    made = filtered(script, words=5)
    cost = measured(made, workspace, 30)["stage_3"]
    assert cost.rows is not None and not cost.exact
    assert 40 <= cost.rows <= 160  # 100 rows reach it
    assert cost.tokens_per_request == pytest.approx(cost.spend.tokens / 30)
    assert cost.margin is not None and abs(cost.tokens_per_request - 15) < 2 * cost.margin < 6
    assert cost.requests == cost.rows and cost.tokens == pytest.approx(cost.rows * cost.tokens_per_request, abs=1)
    whole = toys.chain(toys.Brightness(), Third(), rows=300, shard_rows=50)
    run(whole, str(workspace))
    cost = measured(made, workspace, 10)["stage_3"]
    assert (cost.rows, cost.answered, cost.exact, cost.asked) == (60, 40, True, 10)
    assert cost.dollars == pytest.approx(60 * (cost.spend.dollars or 0.0) / 10)


def test_a_stage_that_reads_the_answers_of_another(workspace: Path, endpoint: Endpoint) -> None:
    """The second sees the answers of the first, and needs a request for half of them."""
    script = endpoint.script()
    first = Paid(endpoints=described(script))
    second = Paid(endpoints=described(script), column="told", output="retold", every=2)
    made = toys.chain(first, second, rows=200, shard_rows=100)
    costs = measured(made, workspace, 40)
    assert [costs[name].asked for name in ("stage_1", "stage_2")] == [40, 40]
    again = costs["stage_2"]
    assert 10 <= again.spend.requests <= 30 and again.rows == 160
    assert again.requests == pytest.approx(160 * again.spend.requests / 40, abs=1)
    assert again.dollars is None
    run(made, str(workspace))
    assert set(script.stats()["texts"].values()) == {1} and script.stats()["requests"] == 300


def test_limits_of_the_endpoint_decide_how_long_it_takes(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script(latency_seconds=0.1)
    cost = measured(paid.chain(script, rows=100), workspace / "free", 10)["stage_1"]
    assert cost.seconds is not None and cost.limited_by == ""
    assert 90 * 0.1 / 10 <= cost.seconds <= 90 * 1.0 / 10
    about = {"requests_per_minute": 600.0}
    cost = measured(paid.chain(script, about, rows=100), workspace / "limited", 10)["stage_1"]
    assert cost.seconds == pytest.approx(90 / 600 * 60) and cost.limited_by == f"{NAME}.requests_per_minute"


def test_rows_are_chosen_by_hash_from_several_shards(workspace: Path, endpoint: Endpoint) -> None:
    first, other = endpoint.script(), endpoint.script()
    for place, script in (("one", first), ("two", other)):
        measured(paid.chain(script, rows=100, shard_rows=25), workspace / place, 8)
    texts = first.stats()["texts"]
    assert texts == other.stats()["texts"] and len(texts) == 8
    assert len({int(text.split()[-1]) // 25 for text in texts}) > 1


def test_a_pool_with_too_few_rows(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    made = paid.chain(script, rows=7, shard_rows=2)
    cost = measured(made, workspace, 20)["stage_1"]
    assert (cost.asked, cost.rows, cost.tokens) == (7, 0, 0)
    cost = measured(made, workspace, 20)["stage_1"]
    assert (cost.asked, cost.rows, cost.answered) == (0, 0, 7) and seen(script)[0] == 7


def test_a_global_stage_upstream_must_exist(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()

    def made() -> Pipeline:
        found = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=60, shard_rows=20))
        found.add("bright", toys.Brightness(), "pool").add("total", toys.Total(), "bright")
        found.add("contrast", toys.Brighter(), "bright", total="total")
        return found.add("ask", Paid(endpoints=described(script)), "contrast").check()

    cost = measured(made(), workspace, 5)["ask"]
    assert cost.note == "total must exist first; `curate run --max-tokens N` builds it, and stops after N tokens"
    assert (cost.asked, cost.rows) == (0, None) and seen(script)[0] == 0
    upstream = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=60, shard_rows=20))
    upstream.add("bright", toys.Brightness(), "pool").add("total", toys.Total(), "bright")
    run(upstream.check(), str(workspace))
    cost = measured(made(), workspace, 5)["ask"]
    assert cost.asked == 5 == seen(script)[0] and cost.note == ""


def test_nothing_to_measure(workspace: Path, endpoint: Endpoint) -> None:
    with pytest.raises(RecipeError, match="--measure 0: expected at least 1 row to ask; leave it out to ask none"):
        measured(paid.chain(endpoint.script()), workspace, 0)
    with pytest.raises(RecipeError, match="--measure: no stage of the recipe asks an endpoint by name; leave it out"):
        measured(toys.chain(toys.Brightness()), workspace, 5)


def test_an_endpoint_that_does_not_answer(workspace: Path) -> None:
    """The message comes at once, although requests of a run would wait for it."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        base = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        stage = Paid(endpoints={NAME: {"base_urls": [base], "model": "scripted", "patience_seconds": 600.0}})
        with pytest.raises(PreflightError, match=f"stage_1: endpoint {NAME}: none of its URLs answers"):
            measured(toys.chain(stage, rows=6), workspace, 5)


def test_the_interval_of_a_mean() -> None:
    assert _margin([5.0]) is None and _margin([5.0, 5.0, 5.0]) == 0.0
    values = [float(number) for number in range(20)]
    assert _margin(values) == pytest.approx(2.093 * 5.916 / 20**0.5, rel=1e-3)  # Student's t, 19 degrees of freedom
