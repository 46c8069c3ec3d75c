"""What another threshold would do to a run: rows alive, gained and lost, and the recipe that has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from curate.api.recipes import as_yaml
from curate.api.thresholds.distribution import Distribution, counted, sampled
from curate.api.thresholds.rules import SIGNS, Rule, name_of_new, new_filter, numbers_of, readers, rules, sets
from curate.core.errors import CurateError, InputError
from curate.service.kept import QUESTION
from curate.service.problems import InvalidProblem
from curate.service.runs.finding import FoundRun
from curate.service.runs.recipes import changed
from curate.service.runs.shapes import RecipeOrder
from curate.service.service import Service

T = TypeVar("T")
MOST_SHARDS = 20_000
"""Pools with more shards are only sampled: to read all of them would take hours."""


@dataclass(frozen=True)
class Moved:
    """A threshold of a run at another place."""

    one: FoundRun
    rule: Rule
    found: Distribution
    at: float
    note: str
    """Why the counts are not exact."""
    pending: bool
    """Whether exact ones are being counted."""


def rules_of(service: Service, one: FoundRun) -> list[Rule]:
    """The thresholds of the run's filters."""
    return _asked(service, one, "rules", lambda: rules(one.workspace.run(one.attempt_id).record))


def columns_of(service: Service, one: FoundRun, stage: str) -> list[str]:
    """Columns of numbers of the rows that pass a stage."""
    return _asked(service, one, ("columns", stage), lambda: numbers_of(one.workspace.run(one.attempt_id).record, stage))


def move(service: Service, one: FoundRun, rule: Rule, at: float | None = None, edge: int | None = None) -> Moved:
    """`edge`: instead of `at`, its place among the edges of the first answer. The first answer is from a sample; later
    ones are exact. Raises InvalidProblem."""
    if rule.sign not in SIGNS:
        raise InvalidProblem(f"sign: {rule.sign[:20]!r}: expected one of {', '.join(SIGNS)}")
    run = one.workspace.run(one.attempt_id)
    first = _asked(service, one, rule, lambda: sampled(run.record, rule))
    if edge is not None:
        at = float(first.edges[min(max(edge, 0), len(first.edges) - 1)])
    at = first.usual() if at is None else at
    if not first.has(at):
        first = _asked(service, one, (rule, at), lambda: sampled(run.record, rule, at))
    if first.exact:
        return Moved(one, rule, first, at, "", pending=False)
    if first.shards > MOST_SHARDS:
        note = f"The pool has {first.shards:,} shards; all are read up to {MOST_SHARDS:,}."
        return Moved(one, rule, first, at, note, pending=False)

    def exactly() -> Distribution | str:
        try:
            return counted(run.record, first)
        except CurateError as error:
            return str(error)

    key = ("exact", one.place.id, one.attempt_id, rule, first.edges.tobytes())
    known = service.kept.soon(one.who, key, exactly, f"rows by {rule.column}")
    if isinstance(known, str):
        return Moved(one, rule, first, at, known, pending=False)
    note = "" if known else "All shards are being read; exact numbers will replace these."
    return Moved(one, rule, known or first, at, note, pending=known is None)


def _asked(service: Service, one: FoundRun, about: object, make: Callable[[], T]) -> T:
    key = ("threshold", one.place.id, one.attempt_id, about)
    try:
        return service.kept.get(one.who, key, make, f"thresholds of run {one.id}", kind=QUESTION, seconds=one.settled)
    except InputError as error:
        raise InvalidProblem(str(error)) from None


def lines(of: Moved) -> tuple[str, str, list[str]]:
    """YAML of the filter with the threshold; for a new filter also its name, and the stages that are to read it."""
    if of.rule.parameter:
        return f"{of.rule.parameter}: {_json(of)}", "", []
    record = of.one.workspace.run(of.one.attempt_id).record
    name = name_of_new(record, of.rule)
    return as_yaml({name: new_filter(of.rule, of.at)}, width=1000), name, readers(record, of.rule.stage)


def order(of: Moved) -> RecipeOrder:
    """The run's recipe with the threshold, to check, plan or submit."""
    record = of.one.workspace.run(of.one.attempt_id).record
    return changed(of.one, record, sets(record, of.rule, of.at))


def _json(of: Moved) -> str:
    return json.dumps(of.rule.value(of.at), ensure_ascii=False)
