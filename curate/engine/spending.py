"""What a run spends at endpoints, and its ceilings.

Workers count their requests and tokens with their progress, so a stage's figures are live and include units that stop,
fail or are repeated. The run's limiter deals shares of the ceilings; it also knows the requests of workers that died.
Once it has nothing left to deal, no further unit starts, and requests in flight are still answered.
"""

from __future__ import annotations

import threading
from typing import Any

from curate.core.errors import RESUMES, PreflightError, RecipeError
from curate.core.recipe.pipeline import Pipeline
from curate.core.spend import ELSEWHERE, Ceilings, RunSpend, Spend
from curate.engine.record.events import Events
from curate.engine.state import Options
from curate.engine.workers.scheduler import Scheduler


class Spending:
    """One run's spending, in the driver; any thread may call."""

    def __init__(self, options: Options, workers: Scheduler, events: Events) -> None:
        self._workers, self._events = workers, events
        self._lock = threading.Lock()
        self._emitted: RunSpend | None = None
        self.ceilings = Ceilings(options.max_tokens, options.max_dollars)
        self.over = False
        """The limiter has nothing left to deal: no request starts any more."""
        if self.ceilings:
            self._apply()

    def set(self, **changed: float | None) -> None:
        """Change `max_tokens` or `max_dollars` while the run runs; a missing one stays."""
        now = self.ceilings
        wanted = Ceilings(changed.get("max_tokens", now.tokens), changed.get("max_dollars", now.dollars))
        if wanted != now:
            self.ceilings = wanted
            self._apply()

    def _apply(self) -> None:
        limiter = self._workers.limiter
        limiter.on_over(self._on_over)
        limiter.set(max_tokens=self.ceilings.tokens, max_dollars=self.ceilings.dollars)

    def _on_over(self) -> None:
        self.over = True
        self._workers.draining.set()

    def spent(self) -> RunSpend:
        """What is spent so far, by what the workers reported and by what the limiter knows beyond that."""
        found = RunSpend(self._workers.meter.spend())
        if self._workers.has_limiter:
            reported = found.endpoints
            beyond = {
                name: more
                for name, spent in self._workers.limiter.spent().items()
                if (more := spent - reported.get(name, Spend())).requests
            }  # if it knows no further requests, its tokens are estimates for requests that were reported meanwhile
            found.stages |= {ELSEWHERE: beyond} if beyond else {}
        return found

    def emit(self) -> None:
        """Record what is spent as an event, if it has changed."""
        now = self.spent()
        with self._lock:
            if not now.stages or now == self._emitted:
                return
            self._emitted = now
        ceilings = {"max_tokens": self.ceilings.tokens, "max_dollars": self.ceilings.dollars}
        self._events.emit("spend", stages=now.to_json(), **ceilings)

    def reason(self) -> str:
        """Why the run has stopped, in one line."""
        spent = self.spent().total
        said = self.ceilings.words(spent)
        if not spent.requests:
            return f"stopped: {said}, less than one request may take with its `max_tokens`; raise it, or lower those"
        return f"stopped: {said}; {RESUMES}, and may spend as much again"


def described(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """The endpoints that stages ask, by name, for a run's record: model, limits and price."""
    about = {"model", "requests_per_minute", "tokens_per_minute", "price"}
    return {
        name: endpoint.model_dump(mode="json", include=about)
        for node in pipeline.nodes.values()
        for name, endpoint in node.stage.asks().items()
    }


def check(pipeline: Pipeline, options: Options) -> None:
    """Check that the ceilings of a run and the limits of its endpoints can be kept. Raises RecipeError or
    PreflightError."""
    _check_names(pipeline)
    for name, value in (("--max-tokens", options.max_tokens), ("--max-dollars", options.max_dollars)):
        if value is not None and not value > 0:
            raise RecipeError(f"{name} {value:g}: expected a number above 0; leave it out for no ceiling")
    if options.max_tokens is None and options.max_dollars is None:
        return
    asking = [node for node in pipeline.nodes.values() if node.stage.asks()]
    if not asking:
        option = "--max-tokens" if options.max_tokens is not None else "--max-dollars"
        raise RecipeError(f"{option}: no stage of the recipe asks an endpoint by name; leave it out")
    for node in asking if options.max_dollars is not None else ():
        missing = next((name for name, endpoint in node.stage.asks().items() if endpoint.price is None), None)
        if missing is not None:
            raise PreflightError(
                f"{node.place or 'pipeline'}: {node.name}: --max-dollars: endpoint {missing} has no price; add `price: "
                "{input: ..., output: ...}` (dollars per million tokens) to it, or give --max-tokens"
            )


def _check_names(pipeline: Pipeline) -> None:
    """Limits and prices are kept by the endpoint's name, over all stages. Raises RecipeError."""
    known: dict[str, tuple[str, Any]] = {}
    for node in pipeline.nodes.values():
        for name, endpoint in node.stage.asks().items():
            given = endpoint.requests_per_minute, endpoint.tokens_per_minute, endpoint.price
            first, other = known.setdefault(name, (node.name, given))
            if other != given:
                raise RecipeError(
                    f"{node.place or 'pipeline'}: {node.name}: endpoint {name} has other limits or another price than "
                    f"that of {first}; give the two endpoints different names"
                )
