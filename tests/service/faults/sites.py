"""A service with its database, workspace and replicas, whose target is a head that may be far."""

from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from PIL import Image
from sqlalchemy import create_engine

from curate.api import Workspace
from curate.client import Client
from curate.core.errors import CurateError
from curate.core.recipe.load import parse
from curate.engine.jobs import JobServer
from curate.service.auth.tokens import first_token
from curate.service.database.migrate import migrate
from curate.service.service import Service
from curate.service.settings import Settings
from tests.engine import workspaces
from tests.engine.gates import Gate
from tests.service.faults.heads import LIVE, Head, jobs_of

IMAGES = 24
SLOW = "tests.engine.toys.rows:Costly"


def write(file: Path, points: list[str]) -> None:
    """Replace a list of deaths at once, since another process reads it."""
    aside = file.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps(points))
    aside.replace(file)


class TimedGate(Gate):
    """A run that does not arrive is a failure, not a test without end. Several workers may arrive."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.arrived = os.open(self.folder / "arrived", os.O_RDONLY | os.O_NONBLOCK)

    def wait(self, seconds: float = 120.0) -> None:
        assert select.select([self.arrived], [], [], seconds)[0], f"no run has reached {self.folder}"

    def open(self) -> None:
        """Also when the workers that waited were killed."""
        go = os.open(self.folder / "go", os.O_RDWR)  # waits for no reader
        (self.folder / "go").rename(self.folder / "gone")
        (self.folder / "go").write_text("")
        (self.folder / "arrived").rename(self.folder / "over")
        os.close(go)

    def close(self) -> None:
        os.close(self.arrived)


@dataclass
class Site:
    """`client` asks the first replica."""

    folder: Path
    database: str
    head: Head
    settings: Mapping[str, Any] = field(default_factory=dict)
    token: str = ""
    replicas: list[Replica] = field(default_factory=list)
    gates: list[TimedGate] = field(default_factory=list)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def set_up(self) -> None:
        """A database with an admin."""
        with closing(Service.of(Settings(database=self.database))) as service:
            migrate(service.database)
            self.token = first_token(service) or ""

    def register(self, client: Client) -> None:
        client.post("targets", {"name": "far", "address": self.head.url})
        client.post("workspaces", {"name": "main", "url": str(self.workspace), "target": "far"})
        for kind, name, value in (
            ("root", "images", str(self.folder / "images")),
            ("root", "gates", str(self.folder / "gates")),
            ("op", "slow", SLOW),
        ):
            client.post("registrations", {"kind": kind, "name": name, "value": value})

    def recipe(self, name: str, gate: str = "") -> str:
        """Each name has other images, so that no answer is known. `gate`: where the second stage waits."""
        folder = self.folder / "images" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            for number in range(IMAGES):
                color = tuple(hashlib.sha256(f"{name} {number}".encode()).digest()[:3])
                Image.new("RGB", (16, 16), color).save(folder / f"{number}.png")
        second = {"op": "slow", "from": "pool"} | ({"gate": f"gates/{gate}"} if gate else {})
        stages = {
            "pool": {"op": "acquire.folder", "path": f"images/{name}", "namespace": name, "shard_rows": 8},
            "slow": second,
            "all": {"op": "select.all", "from": "slow"},
            "dataset": {"op": "pack.webdataset", "from": "all", "name": name},
        }
        return yaml.safe_dump({"stages": stages}, sort_keys=False)

    def gate(self, name: str) -> TimedGate:
        (self.folder / "gates" / name).mkdir(parents=True)
        made = TimedGate(self.folder / "gates" / name)
        self.gates.append(made)
        return made

    def close(self) -> None:
        for gate in self.gates:
            gate.close()

    def same_as_local(self, name: str) -> None:
        """Asserts that the dataset `name` has the bytes that the local engine writes."""
        text = self.recipe(name).replace("op: slow", f"op: {SLOW}").replace("path: ", f"path: {self.folder}/")
        local = self.folder / f"local-{name}"
        Workspace(str(local)).submit(parse(text)).wait()
        ours, theirs = (workspaces.files(place, f"datasets/{name}/") for place in (self.workspace, local))
        assert ours == theirs and ours

    @contextmanager
    def single(self, run: str) -> Iterator[None]:
        """Asserts that at no look two drivers of a run were at work. One that has written its result is not, although
        Ray may still wait for its process."""
        over, wrong, server = threading.Event(), list[set[str]](), JobServer(self.head.url)

        def look() -> None:
            while not over.wait(0.5):
                with suppress(CurateError):  # the head may be dead
                    jobs = jobs_of(server, run)
                    alive = {job for job in jobs if jobs[job] in LIVE and not self.result(job).exists()}
                    if len(alive) > 1:
                        wrong.append(alive)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            server.close()
        assert not wrong, wrong

    def leader(self) -> tuple[int, int]:
        """Process of the replica that leads, and the number of passes that it has started."""
        engine = create_engine(self.database.replace("postgresql:", "postgresql+psycopg:"))
        try:
            with engine.connect() as connection:
                chosen = "SELECT holder, beat FROM leaders WHERE name = 'reconciler'"
                holder, beat = connection.exec_driver_sql(chosen).one()
        finally:
            engine.dispose()
        return int(holder.split(":")[1]), beat

    def passes(self, count: int = 4, seconds: float = 60.0) -> None:
        """Wait until this number of passes has started."""
        first, until = self.leader()[1], time.monotonic() + seconds
        while self.leader()[1] < first + count:
            assert time.monotonic() < until
            time.sleep(0.2)

    def result(self, attempt: str) -> Path:
        return self.workspace / "runs" / attempt / "result.json"

    @contextmanager
    def replica(self, **about: Any) -> Iterator[Replica]:
        """Another process of the service; `about`: see main.py. alone: it has its own list of mounted file systems."""
        made = Replica(self, len(self.replicas), about)
        self.replicas.append(made)
        try:
            made.start()
            yield made
        finally:
            made.close()


@dataclass
class Replica:
    site: Site
    number: int
    about: Mapping[str, Any]
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        settings = {
            "database": self.site.database, "url": f"http://127.0.0.1:{port}", "port": port, "poll_seconds": 0.5,
        } | dict(self.site.settings)  # fmt: skip
        self.url = settings["url"]
        self.config = self.site.folder / f"service-{self.number}.yaml"
        self.config.write_text(yaml.safe_dump(settings))
        self.err = self.site.folder / f"service-{self.number}.err"
        self.client = Client(self.url, self.site.token)

    def start(self) -> None:
        words = [sys.executable, "-m", "tests.service.faults.main", str(self.config), json.dumps(dict(self.about))]
        if self.about.get("alone"):
            words = ["unshare", "--mount", "--propagation", "private", *words]
        with self.err.open("ab") as err:
            self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=err)
        self.answers()

    def answers(self, seconds: float = 180.0) -> None:
        """Wait until it does."""
        until = time.monotonic() + seconds
        while True:
            try:
                self.client.me()
                return
            except CurateError:
                assert time.monotonic() < until and self.running, self.err.read_text()
                time.sleep(0.1)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def inside(self, *words: str) -> None:
        """Run a command that sees its file systems."""
        subprocess.run(["nsenter", "--target", str(self.pid), "--mount", *words], check=True)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.client.close()
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(60)
            finally:
                self.process.kill()
                self.process.wait()

    # --- runs ---

    def submit(self, name: str, gate: str = "", **fields: Any) -> str:
        text = self.site.recipe(name, gate)
        return self.client.submit(text, workspace="main", **{"drain_seconds": 30.0} | fields).id

    def reaches(self, run: str, states: str | Sequence[str], seconds: float = 180.0) -> dict[str, Any]:
        """The status of a run once it is in one of these states."""
        states = [states] if isinstance(states, str) else states
        until, found = time.monotonic() + seconds, dict[str, Any]()
        while found.get("state") not in states:
            assert time.monotonic() < until, (states, found.get("state"), found.get("reason"), self.said)
            try:
                found = self.client.run(run).status()
            except CurateError:  # it starts again
                assert self.running, self.said
            time.sleep(0.2)
        return found

    @property
    def said(self) -> str:
        return self.err.read_text()[-3000:]


def path(found: Mapping[str, Any]) -> list[tuple[str, int]]:
    """(state, attempt) that a run went through."""
    return [(change["after"], change["attempt"]) for change in found["changes"]]
