"""Workspaces in memory if there is room: the tests check the order of operations, not the disk's fsync."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.engine.tasks import running as tasks
from tests.engine.gates import Gate

MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder for the file: names are its own, whichever files this process has run. In memory if there is any."""
    room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2**28
    with tempfile.TemporaryDirectory(prefix="curate-tests-", dir=MEMORY if room else None) as folder:
        yield Path(folder)


@pytest.fixture
def workspace(memory: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=memory))
    yield folder / "workspace"
    shutil.rmtree(folder)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other without a delay."""
    monkeypatch.setattr(tasks, "BACKOFF_SECONDS", 0.0)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path)
    yield made
    made.close()
