from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi.testclient import TestClient

from curate.core.store.storage import open_workspace
from curate.service.app import create_app
from curate.service.runs import recipes
from curate.service.service import Service
from curate.service.settings import Limits, Settings
from tests.service.people import people
from tests.service.rest.site import Site, admitted


@pytest.fixture(scope="module")
def site(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Tests of a module share it: each makes separate runs and names."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(migrated_file, folder / "service.db")
    limits = Limits(body_bytes=100_000, requests_per_minute=100_000, failures_per_minute=100_000)
    service = Service.of(Settings(database=f"sqlite:///{folder}/service.db", url="http://testserver", limits=limits))
    app = create_app(service, reconcile=False)
    open_workspace(str(folder / "workspace"))
    made = people(service, str(folder / "workspace"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.sandbox, "start", lambda: None)
        patch.setattr(recipes, "admitted", admitted)
        with TestClient(app) as client:
            yield Site(service, made, app, client)
    service.close()


@pytest.fixture(scope="module")
def address(site: Site) -> Iterator[str]:
    """URL of a real server with the same application, for what a test client cannot do."""
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(site.app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    server.should_exit = True
    thread.join(60)
    bound.close()
