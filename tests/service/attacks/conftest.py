from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.service.policy.sandbox import Sandbox
from tests.service.attacks.place import Place, place

MANY = {"requests_per_minute": 100_000, "failures_per_minute": 100_000, "connections": 100}


@pytest.fixture(scope="module")
def target(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox) -> Iterator[Place]:
    """What the attacks of a module are aimed at."""
    with place(migrated_file, tmp_path_factory.mktemp("target"), sandbox, MANY) as made:
        yield made
