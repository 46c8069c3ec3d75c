"""The whole service over real HTTP, with a cluster that runs jobs in threads of this process."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import yaml
from PIL import Image
from sqlalchemy import update

from curate.api import Workspace
from curate.core.store.storage import open_workspace
from curate.service.app import create_app
from curate.service.database.models import Registration, TargetRow
from curate.service.reconcile.targets import Cluster, Targets
from curate.service.service import Service
from curate.service.serving import listening, url_of
from curate.service.settings import Settings
from tests.service.people import People, people
from tests.service.reconcile.clusters import FakeCluster


@dataclass(frozen=True)
class Served:
    url: str
    service: Service
    people: People
    cluster: FakeCluster
    recipe: Path
    """Reads 4 images and packs them as the dataset `toy`."""

    @contextmanager
    def full(self) -> Iterator[None]:
        """The cluster takes no further run meanwhile."""
        self._take(0)
        yield
        self._take(4)

    def _take(self, most: int) -> None:
        with self.service.database.write() as session:
            session.execute(update(TargetRow).values(max_runs=most))


@contextmanager
def served(migrated_file: Path, folder: Path) -> Iterator[Served]:
    """The service with people, a workspace, and a root `images`."""
    shutil.copy(migrated_file, folder / "service.db")
    bound = listening("127.0.0.1", 0)
    settings = Settings(database=f"sqlite:///{folder / 'service.db'}", url=url_of(bound), poll_seconds=0.1)
    cluster = FakeCluster()
    workspace = str(folder / "workspace")
    open_workspace(workspace)
    cluster.on_submit = lambda name: _run(cluster, workspace, name)
    service = Service.of(settings)
    service.targets = Targets(lambda address, token: _cluster(cluster))
    known = people(service, workspace)
    for number in range(4):
        (folder / "images").mkdir(exist_ok=True)
        Image.new("RGB", (16, 16), (number, 0, 0)).save(folder / "images" / f"{number}.png")
    with service.database.write() as session:
        session.add(Registration(kind="root", name="images", value=str(folder / "images"), created=0.0))
    stages = {
        "pool": {"op": "acquire.folder", "path": "images", "namespace": "toy"},
        "inspect": {"op": "image.inspect", "from": "pool"},
        "all": {"op": "select.all", "from": "inspect"},
        "dataset": {"op": "pack.webdataset", "from": "all", "name": "toy"},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    server = uvicorn.Server(uvicorn.Config(create_app(service), log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield Served(settings.url, service, known, cluster, folder / "recipe.yaml")
    finally:
        server.should_exit = True
        thread.join()
        bound.close()
        service.close()


def _cluster(cluster: FakeCluster) -> Cluster:
    return cluster


def _run(cluster: FakeCluster, workspace: str, name: str) -> None:
    """What the cluster does with a job."""

    def drive() -> None:
        try:
            Workspace(workspace).submitted(name, engine="local").wait()
            cluster.jobs[name].status = "succeeded"
        except Exception as error:  # noqa: BLE001 - the run of the test says why
            cluster.jobs[name].status, cluster.jobs[name].message = "failed", str(error)

    threading.Thread(target=drive, name=f"job {name}", daemon=True).start()
