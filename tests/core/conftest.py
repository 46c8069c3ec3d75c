"""Runs the storage suite on a local disk and on an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from curate.core.store.storage import Storage
from tests.core.store.object_store import new_bucket


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return Storage(str(tmp_path / "work space"))
    return Storage(f"s3://{new_bucket(request.getfixturevalue('object_store'))}/some/prefix")
