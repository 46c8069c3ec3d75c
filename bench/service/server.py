"""The service, or a bare application over the same database, in a separate process.

    python -m bench.service.server FOLDER [--bare] [--cores 0]

Prints its URL. Jobs "run" on a cluster in memory: they are done at once.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from sqlalchemy import select
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bench.service.world import World
from curate.core.store import lease
from curate.core.store.storage import open_workspace
from curate.service.app import create_app
from curate.service.database.database import Database
from curate.service.database.models import IndexedDataset, IndexedRun
from curate.service.reconcile.targets import Cluster, Targets
from curate.service.runs.shapes import RunLine
from curate.service.service import Service
from curate.service.serving import Server, configured, listening, url_of
from tests.service.reconcile.clusters import FakeCluster, Job
from tests.service.records import Recorded


def service_app(world: World, url: str) -> FastAPI:
    service = Service.of(world.settings(url))
    service.targets = Targets(lambda address, token: cluster(world))
    hold(world)
    return create_app(service)


def cluster(world: World) -> Cluster:
    """Knows the running runs; new ones end in a moment, from a thread."""
    made = FakeCluster()
    made.jobs |= {f"{name}-1": Job() for name in world.running}

    def drive(name: str) -> None:
        Recorded(world.workspace, name).result(allocated={"gpu_seconds": 0.0, "cpu_seconds": 0.0})
        made.jobs[name].status = "succeeded"

    made.on_submit = lambda name: threading.Thread(target=drive, args=[name], daemon=True).start()
    return made


def hold(world: World) -> None:
    """This process is the driver of the running runs."""
    storage = open_workspace(world.workspace)
    for name in world.running:
        folder = f"runs/{name}-1"
        held = {"output": folder, "owner": lease.owner(), "beat": 0, "time": time.time()}
        storage.publish_bytes(lease.lease_path(folder), json.dumps(held).encode())


def bare_app(world: World) -> ASGIApp:
    """What FastAPI, pydantic and SQLAlchemy cost without anything of ours: no people, no limits, no pages."""
    app = FastAPI()
    database = Database(world.database)

    @app.get("/runs", response_model=list[RunLine])
    def runs() -> Any:
        with database.read() as session:
            rows = session.scalars(select(IndexedRun).order_by(IndexedRun.started.desc()).limit(50)).all()
        return [vars(row) | {"workspace": "main", "submitted": True, "position": None} for row in rows]

    @app.get("/datasets")
    def datasets() -> Any:
        with database.read() as session:
            rows = session.execute(select(IndexedDataset.__table__).order_by(IndexedDataset.committed.desc()).limit(50))
            return [dict(row) for row in rows.mappings()]

    return Timed(app)


class Timed:
    """Says how long an answer took, as the service does."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                value = f"app;dur={1000 * (time.monotonic() - began):.1f}"
                message["headers"] = [*message["headers"], (b"server-timing", value.encode())]
            await send(message)

        await self.app(scope, receive, timed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--cores", type=int, nargs="*", default=[])
    given = parser.parse_args()
    if given.cores:
        os.sched_setaffinity(0, given.cores)
    world = World.read(given.folder)
    bound = listening("127.0.0.1", 0)
    if given.bare:
        config = uvicorn.Config(bare_app(world), log_config=None, access_log=False)
    else:
        app = service_app(world, url_of(bound))
        config = configured(app.state.service, app)
    Server(config, lambda: print(f"url: {url_of(bound)}", flush=True)).run(sockets=[bound])


if __name__ == "__main__":
    main()
