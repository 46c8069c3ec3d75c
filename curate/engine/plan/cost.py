"""What the requests of a run will cost, by the rows that were measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.markup import escape
from rich.table import Table

from curate.core.contracts import AsyncMap
from curate.core.errors import PreflightError, RecipeError
from curate.core.recipe.pipeline import Pipeline
from curate.core.spend import Spend, dollars, total
from curate.core.store.storage import Storage
from curate.engine.plan.lines import EXACT, PlanLine
from curate.engine.plan.measure import Measure, Measured, Measurement, asking, context_of
from curate.engine.plan.planner import plan
from curate.engine.preflight import check_endpoints, preflight
from curate.engine.progress import duration
from curate.engine.run import placed
from curate.engine.state import Options
from curate.engine.workers.scheduler import Scheduler


@dataclass
class Cost:
    """What is left to ask at a stage. None: unknown."""

    stage: str
    endpoints: tuple[str, ...]
    asked: int = 0
    """Rows of the measurement."""
    spend: Spend = field(default_factory=Spend)
    """What that cost."""
    answered: int | None = None
    """Rows with a stored answer."""
    rows: int | None = None
    """Rows left to ask."""
    exact: bool = False
    """Whether `rows` is counted, not estimated."""
    requests: int | None = None
    tokens: int | None = None
    tokens_per_request: float | None = None
    margin: float | None = None
    """Half of the 95 % interval of that mean."""
    seconds: float | None = None
    """With one worker, as many requests in flight as were measured, and the limits of the endpoint."""
    limited_by: str = ""
    """The limit of the endpoint that decides `seconds`, if one does."""
    dollars: float | None = None
    note: str = ""


def measured_plan(
    pipeline: Pipeline, storage: Storage, options: Options, workers: Scheduler, rows: int, exact: bool = False
) -> tuple[list[PlanLine], list[Cost]]:
    """Measure with `rows` rows of each stage that asks; then plan, and say what the rest costs. Raises RecipeError, and
    PreflightError if an endpoint cannot be asked."""
    if rows < 1:
        raise RecipeError(f"--measure {rows}: expected at least 1 row to ask; leave it out to ask none")
    if not asking(pipeline.nodes):
        raise RecipeError("--measure: no stage of the recipe asks an endpoint by name; leave it out")
    pipeline = placed(pipeline, workers)
    for problem in check_endpoints(pipeline, storage, workers):
        raise PreflightError(problem)
    found = Measure(context_of(pipeline, storage, options, workers), rows).run()
    lines = plan(pipeline, storage, options, workers, preflight(pipeline, storage, backend=workers), exact, ahead=False)
    return lines, costs(found, {line.stage: line for line in lines}, pipeline)


def costs(found: Measurement, lines: Mapping[str, PlanLine], pipeline: Pipeline) -> list[Cost]:
    """A cost per stage that asks, in the order of the DAG. `lines`: the plan after the measurement."""
    made: list[Cost] = []
    whole: dict[str, float | None] = {}
    for node in asking(pipeline.nodes):
        stage, line = node.stage, lines[node.name]
        assert isinstance(stage, AsyncMap)
        cost = Cost(node.name, tuple(stage.asks()), note=found.blocked.get(node.name, ""))
        made.append(cost)
        measured = found.stages.get(node.name, Measured())
        if line.compute is not None and line.needed is not None:
            cost.rows, cost.answered, cost.exact = line.compute, line.needed - line.compute, line.certainty == EXACT
            whole[node.name] = line.needed
        else:
            whole[node.name] = rows = _estimated_rows(node.name, found, lines, pipeline, whole)
            cost.rows = None if rows is None else max(0, round(rows) - measured.kept)
        if measured.asked:
            _extrapolate(cost, measured, stage)
        elif not cost.note and cost.rows != 0:
            cost.note = f"no row without an answer reached it, of {found.rows:,} rows"
    return made


def _estimated_rows(
    name: str,
    found: Measurement,
    lines: Mapping[str, PlanLine],
    pipeline: Pipeline,
    whole: Mapping[str, float | None],
) -> float | None:
    """Rows that reach a stage, by the share of the measured rows that did: of the rows of the next stage upstream that
    asks, or of the pool."""
    above = [node.name for node in pipeline.along(name) if node.name in whole and node.name in found.stages]
    base = found.stages[above[-1]].kept if above else found.rows
    rows = whole[above[-1]] if above else lines[pipeline.pool_of(name)].needed
    if name not in found.stages or rows is None or not base:
        return None
    return rows * min(1.0, found.stages[name].reached / base)


def _extrapolate(cost: Cost, measured: Measured, stage: AsyncMap) -> None:
    """Fill in what `cost.rows` rows will take."""
    cost.asked, cost.spend = measured.asked, total(measured.spend.values())
    if measured.requests:
        cost.tokens_per_request = cost.spend.most_tokens / max(1, cost.spend.requests)
        cost.margin = _margin([one.most_tokens / max(1, one.requests) for one in measured.requests])
    if cost.rows is None:
        return
    factor = cost.rows / measured.asked
    cost.requests, cost.tokens = round(factor * cost.spend.requests), round(factor * cost.spend.most_tokens)
    cost.dollars = None if cost.spend.dollars is None else factor * cost.spend.most_dollars
    in_flight = min(max(1, len(measured.seconds)), stage.max_in_flight)
    times = {"": factor * sum(measured.seconds) / in_flight}
    for name, endpoint in stage.asks().items():
        spend = measured.spend.get(name, Spend())
        if endpoint.requests_per_minute:
            times[f"{name}.requests_per_minute"] = factor * spend.requests / endpoint.requests_per_minute * 60
        if endpoint.tokens_per_minute:
            times[f"{name}.tokens_per_minute"] = factor * spend.most_tokens / endpoint.tokens_per_minute * 60
    cost.limited_by = max(times, key=lambda name: times[name])
    cost.seconds = times[cost.limited_by]


def _margin(values: list[float]) -> float | None:
    """Half of the 95 % interval of a mean, by Student's t; None for a single value."""
    if len(values) < 2:
        return None
    freedom = len(values) - 1
    quantile = 1.96 + 2.37 / freedom + 2.8 / freedom**2
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def table(found: list[Cost]) -> Table:
    """For people."""
    shown = Table(title="Requests", title_justify="left", header_style="bold")
    for name in ("stage", "endpoint"):
        shown.add_column(name)
    for name in ("measured", "answered", "rows left", "requests", "tokens each", "tokens", "time", "cost"):
        shown.add_column(name, justify="right")
    shown.add_column("notes")
    for cost in found:
        about = "" if cost.exact else "about "
        margin = "" if cost.margin is None else f" ± {cost.margin:,.0f}"
        each = "" if cost.tokens_per_request is None else f"{cost.tokens_per_request:,.0f}{margin}"
        price = "no price given" if cost.spend.dollars is None else "?"
        limit = [f"limited by {cost.limited_by}"] if cost.limited_by else []
        cells = [escape(cost.stage), escape(", ".join(cost.endpoints)), f"{cost.asked:,}", _number(cost.answered)]
        cells += [_number(cost.rows, about), _number(cost.requests, "about "), each, _number(cost.tokens, "about ")]
        cells += ["?" if cost.seconds is None else duration(cost.seconds)]
        cells += [price if cost.dollars is None else dollars(cost.dollars)]
        shown.add_row(*cells, "; ".join([*limit, *([cost.note] if cost.note else [])]))
    spent = total(cost.spend for cost in found)
    paid = "" if spent.dollars is None else f" for {dollars(spent.dollars)}"
    asked = sum(cost.asked for cost in found)
    shown.caption = f"{asked:,} rows were measured{paid}; a run reuses their answers. Times are for one worker"
    return shown


def _number(value: float | None, about: str = "") -> str:
    return "?" if value is None else f"{about if value else ''}{value:,}"


def to_json(lines: list[PlanLine], found: list[Cost]) -> dict[str, Any]:
    """A plan for programs."""
    return {"stages": [asdict(line) for line in lines], "requests": [asdict(cost) for cost in found]}
