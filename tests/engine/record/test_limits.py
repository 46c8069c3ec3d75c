"""Limits and ceilings that `curate limit` changes while a run runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from curate.core.errors import InputError
from curate.core.store.storage import open_workspace
from curate.engine.record import limits
from curate.engine.record.runs import RunRecord
from curate.engine.spending import Spending
from curate.engine.workers.scheduler import Scheduler

ENDPOINTS = {"priced": {"price": {"input": 1.0, "output": 2.0}}, "plain": {"price": None}}


class Said:
    """A run's driver that notes what is changed."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.has_limiter = False
        self.limiter = self

    def set(self, room: str | None = None, **given: Any) -> None:
        self.heard.append((room, given) if room else given)


def record(**endpoints: Any) -> RunRecord:
    return RunRecord(cast(Any, None), {"run_id": "one", "endpoints": endpoints}, None)


def test_changes_add_up(workspace: Path) -> None:
    storage = open_workspace(str(workspace))
    limits.request(storage, "one", {"max_tokens": 5.0, "endpoints": {"a": {"requests_per_minute": 60.0}}})
    limits.request(storage, "one", {"max_dollars": None, "endpoints": {"b": {"tokens_per_minute": None}}})
    found = limits.request(storage, "one", {"endpoints": {"a": {"tokens_per_minute": 9.0}}})
    both = {"a": {"requests_per_minute": 60.0, "tokens_per_minute": 9.0}, "b": {"tokens_per_minute": None}}
    assert found == limits.requested(storage, "one") == {"max_tokens": 5.0, "max_dollars": None, "endpoints": both}


def test_a_driver_applies_changes() -> None:
    """Limits wait until the run has a limiter: nothing needs them before."""
    workers, spending = Said(), Said()
    wanted = {"bytes_per_second": 5.0, "max_dollars": 2.0, "endpoints": {"a": {"requests_per_minute": 60.0}}}
    limits.apply(wanted, cast(Scheduler, workers), cast(Spending, spending))
    assert workers.heard == [] and spending.heard == [{"max_dollars": 2.0}]
    workers.has_limiter = True
    limits.apply(wanted, cast(Scheduler, workers), cast(Spending, spending))
    assert workers.heard == [{"bytes_per_second": 5.0}, ("endpoints/a", {"requests_per_minute": 60.0})]


@pytest.mark.parametrize(
    ("endpoints", "wanted", "said"),
    [
        ({}, {"max_tokens": 5}, "none of its stages asks an endpoint by name; it has no such limit"),
        (ENDPOINTS, {"endpoints": {"other": {}}}, "asks no endpoint 'other'; expected one of plain, priced"),
        (ENDPOINTS, {"max_dollars": 5}, "endpoint plain had no price when the run began; change --max-tokens instead"),
    ],
)
def test_limits_that_a_run_cannot_have(endpoints: dict[str, Any], wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        limits.check(record(**endpoints), wanted)
    assert str(error.value) == f"run one: {said}"
    limits.check(record(priced=ENDPOINTS["priced"]), {"max_dollars": 5, "endpoints": {"priced": {}}})
