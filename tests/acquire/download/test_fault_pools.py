"""Every fault of the test server on its way from a list to a pool: row, member, tries, ledger."""

from __future__ import annotations

import json
import tarfile
import time
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.acquire.download.download import AcquireDownload
from curate.acquire.fetch.codes import CODES
from curate.acquire.lists.list import AcquireList
from curate.core.ledger import Entry
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from curate.engine.state import Options
from tests.acquire.server.outcomes import CASES, GROUPS, Case, places
from tests.acquire.server.server import FaultServer

NO_URL = "URL  "
"""This case has no URL, so `acquire.list` drops its row."""
FETCHED = [case for case in CASES if not case.settings and case.name != NO_URL]
"""The cases with the settings of their group: each group is a stage."""
SECONDS = 250.0
"""All faults take a few seconds, and those that no limit ends a thousand."""


@dataclass(repr=False)
class Pools:
    rows: dict[str, dict[str, Any]]
    """By name of the case, which is the row's caption."""
    members: dict[str, bytes]
    tries: dict[str, int]
    """By name of the case, of rows that were fetched."""
    requests: Counter[str]
    ledger: dict[str, Entry]
    seconds: float


@pytest.fixture(scope="module")
def pools(runner_python: Path, fault_server: FaultServer, tmp_path_factory: pytest.TempPathFactory) -> Pools:
    """One run with a list and a download per group."""
    root = tmp_path_factory.mktemp("faults")
    addresses = places()
    pipeline = Pipeline()
    for group, settings in GROUPS.items():
        lines = [line(case, fault_server, addresses[case.name]) for case in FETCHED if case.group == group]
        (root / f"{group}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        pipeline.add(f"{group}_list", AcquireList(path=str(root / f"{group}.jsonl")))
        download = AcquireDownload(namespace=group, allow_ports=fault_server.ports, **settings)
        pipeline.add(group, download, list=f"{group}_list")
    start = time.monotonic()
    result = run(pipeline.check(), str(root / "workspace"), options=Options(failure_budget=1.0))
    seconds = time.monotonic() - start
    asked = fault_server.log.per_host()
    requests = Counter({name: asked[host] for name, host in addresses.items()})
    return Pools(*read(root / "workspace"), requests, result.ledger, seconds)


def line(case: Case, server: FaultServer, host: str) -> dict[str, Any]:
    return {"url": case.url(server, host), "caption": case.name, "sha256": case.sha256, "md5": case.md5}


def read(workspace: Path) -> tuple[dict[str, dict[str, Any]], dict[str, bytes], dict[str, int]]:
    """Rows, members and tries by caption."""
    rows: dict[str, dict[str, Any]] = {}
    members: dict[str, bytes] = {}
    tries: dict[str, int] = {}
    for path in workspace.glob("pools/*/shards/*.parquet"):
        table = {row["key"]: row for row in pq.read_table(path).to_pylist()}
        rows |= {row["caption"]: row for row in table.values()}
        data = path.with_suffix(".tar").read_bytes()
        with tarfile.open(fileobj=BytesIO(data)) as tar:
            assert len(tar.getnames()) == sum(row["size"] is not None for row in table.values())
        for row in table.values():
            if row["size"] is not None:
                members[row["caption"]] = data[row["offset"] : row["offset"] + row["size"]]
    by_key = {row["key"]: row["caption"] for row in rows.values()}
    for path in workspace.glob("fetches/*/*.parquet"):
        tries |= {by_key[fetch["key"]]: fetch["tries"] for fetch in pq.read_table(path).to_pylist()}
    return rows, members, tries


@pytest.mark.parametrize("case", FETCHED, ids=lambda case: case.name)
def test_fault(case: Case, pools: Pools) -> None:
    row = pools.rows[case.name]
    status, _ = CODES[case.code]
    if status == "done":
        assert (row["reject"], row["status"]) == (None, None)
        assert pools.members[case.name] == case.data
    else:
        assert (row["reject"], row["status"]) == (case.code, status)
        assert case.name not in pools.members
    assert pools.requests[case.name] == (case.tries if case.requests is None else case.requests)
    if case.name in pools.tries:
        assert pools.tries[case.name] == case.tries
    else:
        assert status == "unusable" and not pools.requests[case.name]


@pytest.mark.parametrize("group", GROUPS)
def test_ledger(group: str, pools: Pools) -> None:
    codes = Counter(case.code for case in FETCHED if case.group == group)
    by_status = {
        status: Counter({code: count for code, count in codes.items() if CODES[code][0] == status})
        for status in ("unusable", "error")
    }
    entry = pools.ledger[group]
    assert (entry.before, entry.after) == (codes.total(), codes["done"])
    assert (entry.unusable, entry.error) == (by_status["unusable"], by_status["error"])


def test_in_time(pools: Pools) -> None:
    assert pools.seconds < SECONDS
