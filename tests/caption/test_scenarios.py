"""Behaviours of model servers: what becomes of the rows and of the run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from curate.api import Workspace
from curate.caption.generate import Generate
from curate.caption.prompt import Prompt
from curate.core.errors import CurateError
from curate.engine.requests import breaker, http, pool
from curate.engine.run import run
from tests.caption import test_run
from tests.servers.scenarios import PROMPT, ROWS, SCENARIOS, endpoints
from tests.servers.scripted import Endpoint


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_behaviour(name: str, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(pool, "TELL_SECONDS", 0.5)
    scenario = SCENARIOS[name]
    script = endpoint.script(faults=scenario.faults, models=["m"])
    stage = Generate(endpoints=endpoints(script, scenario), prompt=Prompt.model_validate(PROMPT))
    made = test_run.pool(ROWS).add("generate", stage, "pool")
    if isinstance(scenario.expected, str):
        with pytest.raises(CurateError) as ended:
            run(made, str(tmp_path / "workspace"), options=test_run.LOSSES)
        assert scenario.expected in str(ended.value) and "\n" not in str(ended.value)
        assert script.stats()["requests"] <= ROWS
        return
    result = run(made, str(tmp_path / "workspace"), options=test_run.LOSSES)
    rows = test_run.rows(tmp_path / "workspace", "caption.generate")
    found = Counter(row["generated_outcome"] or row["_reason"] for row in rows)
    assert dict(found) == dict(scenario.expected)
    assert not any("think" in (row["generated"] or "").lower() for row in rows)
    warned = told(tmp_path / "workspace", result.run_id)
    assert not scenario.says or any(scenario.says in text for text in warned), warned
    assert len(set(warned)) == len(warned)


def told(workspace: Path, run_id: str) -> list[str]:
    """Warnings that the run showed."""
    events = Workspace(str(workspace)).run(run_id).events()
    return [str(event["text"]) for event in events if event["event"] == "warning"]
