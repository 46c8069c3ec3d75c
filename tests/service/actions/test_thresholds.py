"""Thresholds and comparisons of runs, as users see them."""

from __future__ import annotations

import pytest

from curate.api.thresholds.rules import Rule
from curate.core.errors import CurateError
from curate.service.database.models import IndexedRun
from curate.service.problems import ConflictProblem, InvalidProblem, NotFoundProblem
from curate.service.runs import thresholds
from curate.service.runs.compare import compare_runs, pair
from curate.service.samples.looking import looked
from curate.service.service import Service
from tests.engine import toys
from tests.service.curated import Curated
from tests.service.people import People


def test_large_pools_are_only_sampled(
    service: Service, people: People, curated: Curated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("curate.api.thresholds.distribution.SAMPLE", 2)
    monkeypatch.setattr("curate.api.thresholds.distribution.LEAST", 2)
    one, rule = looked(service, people.viewer.principal, "first", None).one, Rule("bright", "brightness")
    first = thresholds.move(service, one, rule)
    assert first.pending and not first.found.exact and "All shards are being read" in first.note
    exact = first
    while exact.pending:
        exact = thresholds.move(service, one, rule)
    assert exact.found.exact and not exact.note and exact.found.has(exact.at)
    monkeypatch.setattr(thresholds, "MOST_SHARDS", 1)
    sampled = thresholds.move(service, one, Rule("bright", "brightness", "<="))
    assert not sampled.pending and not sampled.found.exact and "all are read up to 1" in sampled.note


def test_runs_that_cannot_be_seen_or_have_not_begun(service: Service, people: People, curated: Curated) -> None:
    with pytest.raises(NotFoundProblem):
        compare_runs(service, people.stranger.principal, "first", "first")
    with service.database.write() as session:
        session.get_one(IndexedRun, (people.workspace.id, "first")).state = "queued"
    with pytest.raises(ConflictProblem):
        compare_runs(service, people.viewer.principal, "first", "first")


@pytest.fixture
def second(service: Service, people: People, curated: Curated) -> str:
    curated.workspace.submit(toys.pipeline(light__darkest=125), run_id="second-1").wait()
    about = {"title": "", "user": "operator", "target": "local", "state": "done", "submitted": False}
    with service.database.write() as session:
        session.add(
            IndexedRun(workspace_id=people.workspace.id, id="second-1", attempt_id="second-1", started=2e9, **about)
        )
    return "second-1"


def test_two_runs(service: Service, people: People, curated: Curated, second: str) -> None:
    found = compare_runs(service, people.viewer.principal, "first", second)
    while found.keys is None and not found.note:
        found = compare_runs(service, people.viewer.principal, "first", second)
    changed = {one["stage"]: one["parameters"] for one in found.stages if one["parameters"]}
    assert changed["light"]["darkest"][1] == 125 and found.note == "" and found.keys is not None
    assert found.keys["gained"] + found.keys["lost"] > 0
    with pytest.raises(InvalidProblem, match="not a stage with rows in both runs"):
        compare_runs(service, people.viewer.principal, "first", second, stage="nowhere")
    with pytest.raises(CurateError, match="not found"):
        pair(service, people.viewer.principal, "first", "third", "", None)
