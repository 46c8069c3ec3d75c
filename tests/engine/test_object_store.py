"""The whole pipeline in a workspace on an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curate.core.store.storage import Storage
from curate.engine.run import run
from tests.core.store.object_store import new_bucket
from tests.engine import toys, workspaces


def mirror(storage: Storage, folder: Path) -> Path:
    """A copy of a workspace on this machine's disk, to compare it with others."""
    for name in storage.list(""):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.read(name))
    return folder


@pytest.mark.long
def test_the_bytes_are_those_of_a_local_workspace(object_store: Any, workspace: Path, tmp_path: Path) -> None:
    url = f"s3://{new_bucket(object_store)}/deep/workspace"
    small = {"pool__rows": 16, "pool__shard_rows": 8}
    local = run(toys.pipeline(**small), str(workspace))
    stored = run(toys.pipeline(**small), url)
    assert stored.ledger == local.ledger
    assert stored.outputs["dataset"].startswith(f"{url}/datasets/toys/")
    workspaces.assert_same(workspace, mirror(Storage(url), tmp_path))
    again = run(toys.pipeline(**small), url)
    assert all(again.reused.values())
    assert Storage(url).list("leases") == {}
