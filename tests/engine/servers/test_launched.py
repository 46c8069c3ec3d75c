"""Runs that ask a server which their worker launches."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from curate.core.errors import CurateError
from curate.engine.run import Result, run
from curate.engine.servers import server
from curate.engine.state import Options
from tests.engine import toys, workspaces
from tests.engine.servers.conftest import Make
from tests.engine.servers.tell import Tell
from tests.servers.transformers_server import launched, model

ROWS = 40


def go(workspace: Path, stage: Tell, rows: int = ROWS, engine: Any = "local") -> Result:
    options = Options(failure_budget=1.0)
    return run(toys.chain(stage, rows=rows, shard_rows=10), str(workspace), options=options, engine=engine)


def said(workspace: Path) -> list[str]:
    held = workspaces.facts(workspace, "toy.tell").values()
    return sorted(str(row["said"]) for shards in held for rows in shards.values() for row in rows)


def expected(rows: int = ROWS) -> list[str]:
    return sorted(f"said picture {number}" for number in range(rows))


def answered(log: Path) -> tuple[Counter[str], set[int]]:
    """Question -> answers; and the servers that gave them."""
    lines = [line.split(maxsplit=1) for line in log.read_text().splitlines()]
    return Counter(text for _, text in lines), {int(pid) for pid, _ in lines}


def test_a_server_that_dies_is_started_again_and_every_row_answered(
    make: Make, workspace: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    result = go(workspace, Tell(ask=make(log=str(log), dies=15, once=str(tmp_path / "died"))))
    assert result.ledger["stage_1"].after == ROWS and said(workspace) == expected()
    texts, pids = answered(log)
    assert len(pids) == 2 and len(texts) == ROWS and texts.total() <= ROWS + 20


def test_a_server_that_cannot_start_ends_the_run_in_one_line(make: Make, workspace: Path) -> None:
    with pytest.raises(
        CurateError, match=r"stage_1: endpoint big: vllm ended with status 1 .*: no memory; check"
    ) as raised:
        go(workspace, Tell(ask=make(fails="no memory")))
    assert "\n" not in str(raised.value)


@pytest.mark.long
def test_a_worker_that_is_killed_takes_its_server_along_and_the_next_one_starts_another(
    make: Make, workspace: Path, tmp_path: Path, on_ray: Any
) -> None:
    log = tmp_path / "log"
    stage = Tell(ask=make(log=str(log), gpus=0), dies_once=str(tmp_path / "died"))
    result = go(workspace, stage, engine=on_ray)
    assert result.ledger["stage_1"].after == ROWS and said(workspace) == expected()
    assert (tmp_path / "died").exists()
    _, pids = answered(log)
    assert len(pids) > 1 and sum(map(psutil.pid_exists, pids)) < len(pids)


@pytest.mark.long
def test_transformers_serve_is_launched_killed_and_started_again(
    workspace: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "POLL_SECONDS", 0.2)
    endpoint = launched(model(pytestconfig.cache.mkdir("tiny_vlm")), startup_seconds=239.0)  # type: ignore[union-attr]
    killed: list[int] = []
    answer = Tell.answer

    async def killing(self: Tell, request: Any, client: Any) -> dict[str, Any]:
        if request == "picture 20" and not killed:
            while not server._servers:  # another request starts it
                await asyncio.sleep(0.01)
            [one] = server._servers.values()
            await one.base_url()
            [child] = psutil.Process(one.pid).children()
            killed.append(child.pid)
            child.kill()
        return await answer(self, request, client)

    monkeypatch.setattr(Tell, "answer", killing)
    result = go(workspace, Tell(ask=endpoint))
    entry = result.ledger["stage_1"]
    assert killed and entry.after == ROWS, (killed, entry)
    assert len(said(workspace)) == ROWS and len(set(said(workspace))) > 1  # the model is random, its answers vary
