"""A workspace with a run of the toys and its dataset, as the index knows it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from curate.api import Workspace
from curate.service.database.models import IndexedDataset, IndexedRun
from curate.service.service import Service
from tests.engine import toys
from tests.service.people import People


@dataclass(frozen=True)
class Curated:
    """Workspace `main` of `People`."""

    workspace: Workspace
    base: str
    """Folder of the dataset `toys`."""
    key: str
    """Key: a sample that the dataset has."""

    @property
    def fingerprint(self) -> str:
        return self.base.rpartition("/")[2]


@pytest.fixture(scope="session")
def toy_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To copy."""
    path = tmp_path_factory.mktemp("toys") / "workspace"
    Workspace(str(path)).submit(toys.pipeline(), run_id="first-1").wait()
    return path


@pytest.fixture
def curated(service: Service, people: People, toy_workspace: Path) -> Curated:
    """A run `first`, with one attempt, and its dataset."""
    shutil.copytree(toy_workspace, people.workspace.url)
    workspace = Workspace(people.workspace.url)
    (dataset,) = workspace.datasets()
    run = {"title": "toys", "user": "operator", "target": "local", "state": "done", "submitted": True}
    with service.database.write() as session:
        session.add(
            IndexedRun(
                workspace_id=people.workspace.id, id="first", attempt_id="first-1", started=1e9, ended=1e9 + 5, **run
            )
        )
        session.add(indexed(people, dataset.base, rows=dataset.rows))
    index = pq.read_table(f"{people.workspace.url}/{dataset.base}/index.parquet", columns=["key"])
    return Curated(workspace, dataset.base, index["key"][0].as_py())


def indexed(people: People, base: str, *, rows: int = 5, committed: float = 1e9, run: str = "first") -> IndexedDataset:
    _, name, fingerprint = base.split("/")
    return IndexedDataset(
        workspace_id=people.workspace.id, base=base, name=name, fingerprint=fingerprint, rows=rows, tars=1, bytes=100,
        committed=committed, run_id=run,
    )  # fmt: skip
