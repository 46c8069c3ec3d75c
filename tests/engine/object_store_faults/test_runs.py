"""Runs in a workspace on an unreliable object store: their outputs equal those without faults."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from curate.core.errors import CurateError
from curate.core.store.storage import Storage
from curate.engine.run import run
from tests.core.store.object_store import new_bucket
from tests.engine import toys, workspaces
from tests.engine.object_store_faults.proxy import Fault, Proxy
from tests.engine.test_object_store import mirror

pytestmark = pytest.mark.long
SMALL = {"pool__rows": 16, "pool__shard_rows": 8}
FAULTS = {
    "slow down, one request of 5": [Fault("slow_down", every=5)],
    "slow down, 20 in a row": [Fault("slow_down", "PUT", times=5), Fault("slow_down", "GET", times=15)],
    "no answer, one of 40": [Fault("stall", every=40)],
    "cut uploads, one of 5": [Fault("cut_upload", "PUT", every=5)],
    "cut replies, one of 5": [Fault("cut_reply", "PUT", every=5)],
    "cut downloads, one of 5": [Fault("cut_download", "GET", every=5)],
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", FAULTS)
def test_faults_change_nothing(name: str, proxy: Proxy, object_store: Any, workspace: Path, tmp_path: Path) -> None:
    url = f"s3://{new_bucket(object_store)}/workspace"
    proxy.faults += FAULTS[name]
    stored = run(toys.pipeline(**SMALL), url)
    again = run(toys.pipeline(**SMALL), url)
    assert sum(count for what, count in proxy.done.items() if what) > 0
    proxy.faults.clear()
    local = run(toys.pipeline(**SMALL), str(workspace))
    assert stored.ledger == again.ledger == local.ledger
    workspaces.assert_same(workspace, mirror(Storage(url), tmp_path))


def test_lists_that_lag_leave_no_wrong_result(proxy: Proxy, object_store: Any, workspace: Path, tmp_path: Path) -> None:
    url = f"s3://{new_bucket(object_store)}/workspace"
    proxy.faults.append(Fault("lag"))
    with contextlib.suppress(CurateError):  # a line that says what seems to be missing
        run(toys.pipeline(**SMALL), url)
    assert proxy.done["lag"] > 0
    proxy.faults.clear()
    stored = run(toys.pipeline(**SMALL), url)
    local = run(toys.pipeline(**SMALL), str(workspace))
    assert stored.ledger == local.ledger
    mirrored = mirror(Storage(url), tmp_path)
    ours, theirs = workspaces.nouns(workspace), workspaces.nouns(mirrored)
    assert {name: theirs.get(name) for name in ours} == ours
    for held in (workspaces.facts, workspaces.fixed, workspaces.masks, workspaces.answers):
        assert held(mirrored) == held(workspace)
