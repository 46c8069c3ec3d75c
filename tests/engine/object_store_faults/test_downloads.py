"""Downloads into a workspace on an unreliable object store: the pool equals that of a local workspace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.core.store.storage import Storage
from curate.engine.run import run
from tests.acquire.download.site import Site, write_list
from tests.core.store.object_store import new_bucket
from tests.engine import workspaces
from tests.engine.object_store_faults.proxy import Fault, Proxy
from tests.engine.test_object_store import mirror

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("runner_python")]
FAULTS = {
    "none": [],
    "slow down, one request of 5": [Fault("slow_down", every=5)],
    "cut uploads, one of 3": [Fault("cut_upload", "PUT", every=3)],
    "cut replies, one of 3": [Fault("cut_reply", "PUT", every=3)],
    "cut downloads, one of 3": [Fault("cut_download", "GET", every=3)],
}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as server:
        yield server


@pytest.fixture(scope="module")
def path(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_list(tmp_path_factory.mktemp("list") / "list.jsonl", site.rows())


@pytest.fixture(scope="module")
def local(site: Site, path: Path, memory: Path) -> Path:
    """The workspace of a run on this machine's disk."""
    run(site.pipeline(path), str(memory / "local"))
    return memory / "local"


@pytest.mark.drawn
@pytest.mark.parametrize("name", FAULTS)
def test_faults_change_nothing(
    name: str, site: Site, path: Path, local: Path, proxy: Proxy, object_store: Any, tmp_path: Path
) -> None:
    url = f"s3://{new_bucket(object_store)}/workspace"
    proxy.faults += FAULTS[name]
    site.log.clear()
    stored = run(site.pipeline(path), url)
    requests = len(site.log)
    assert run(site.pipeline(path), url).ledger == stored.ledger and len(site.log) == requests
    assert sum(proxy.done[fault.do] for fault in FAULTS[name]) > 0 or not FAULTS[name]
    proxy.faults.clear()
    found = mirror(Storage(url), tmp_path)
    both = [workspaces.files(folder) for folder in (local, found)]
    assert sorted(both[0]) == sorted(both[1])
    assert [n for n in both[0] if both[0][n] != both[1][n] and not n.startswith("fetches/")] == []
    assert workspaces.manifests(local) == workspaces.manifests(found)
