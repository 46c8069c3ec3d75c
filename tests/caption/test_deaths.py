"""Captions by workers that die, and by endpoints that do: nothing is lost, and little is asked twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from curate.caption.ask import Ask
from curate.caption.generate import Generate
from curate.caption.rewrite import Rewrite
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import Result, run
from tests.draw import drawn
from tests.engine import toys, workspaces
from tests.engine.asks import LOSSES, segments
from tests.engine.deaths import deaths
from tests.servers import proxy as proxies
from tests.servers.proxy import Fault

ROWS = 48
STAGES = ("generate", "ask", "rewrite")


def pipeline(*base_urls: str) -> Pipeline:
    known: Any = {"one": {"base_urls": list(base_urls), "model": "m", "max_in_flight": 8}}
    made = Pipeline().add("pool", toys.Numbers(namespace="captions", rows=ROWS, shard_rows=ROWS))
    made.add("generate", Generate(endpoints=known), "pool").add("ask", Ask(endpoints=known), "generate")
    return made.add("rewrite", Rewrite(endpoints=known), "ask").check()


def requests(log: Iterable[Mapping[str, Any]]) -> Counter[Any]:
    """How often the server saw each request. Answers of one row differ by prompt, seed and image."""
    return Counter((line["prompt"], *line["images"], line["seed"]) for line in log)


def check(result: Result) -> None:
    """The rows of each stage add up."""
    rows = ROWS
    for name in STAGES:
        entry, counts = result.ledger[name], result.counts[name]
        assert entry.after + sum(entry.error.values()) == rows >= counts.computed + counts.copied, name
        rows = entry.after


@pytest.mark.long
def test_workers_that_die_on_ray(endpoint: Any, on_ray: Any, tmp_path: Path) -> None:
    """One dies at its first answers to questions or its first rewritten texts; with both points, its successor too."""
    script = endpoint.script(style="captions", latency_seconds=0.3, slots=8, wrong_schema=0.3)  # some are asked twice
    workspace, folder = tmp_path / "workspace", tmp_path / "deaths"
    folder.mkdir()
    points = drawn([f"publish:facts/caption.{op}/*/log/*-000001-*:published" for op in ("ask", "rewrite")])
    with deaths(on_ray, points, folder):
        result = run(pipeline(script.base_url), str(workspace), options=LOSSES, engine=on_ray)
    check(result)
    asked = requests(script.log())
    repeated = sum(asked.values()) - len(asked)
    assert 0 < repeated <= len(points) * 3 * 16  # each time those of three stages, twice as many as may be in flight
    assert not segments(workspace)
    again = run(pipeline(script.base_url), str(workspace), options=LOSSES, engine=on_ray)
    assert sum(again.counts[name].requests for name in STAGES) == 0


def test_an_endpoint_that_fails_in_many_ways(endpoint: Any, tmp_path: Path) -> None:
    """Each row has its answer; requests are repeated only after an answer that did not arrive."""
    script, workspace = endpoint.script(style="captions", latency_seconds=0.01, slots=8), tmp_path / "workspace"
    with proxies.started(script.base_url) as proxy:
        for number, fault in enumerate(("malformed", "empty", "cut_middle", "cut_after", "cut_before", "status")):
            proxy.faults.append(Fault(fault, status=503, every=7 + number, times=2))
        result = run(pipeline(proxy.base_url), str(workspace), options=LOSSES)
        lost = proxy.done["malformed"] + proxy.done["cut_middle"] + proxy.done["cut_after"]
    assert proxy.done.keys() == {"", "malformed", "empty", "cut_middle", "cut_after", "cut_before", "status"}
    check(result)
    assert all(not result.ledger[name].error for name in STAGES)
    asked = requests(script.log())
    assert sum(asked.values()) - len(asked) == lost == 6
    assert result.spend.total.requests == len(proxy.log)
    assert workspaces.rows_of(workspace, "caption.rewrite") == ROWS
