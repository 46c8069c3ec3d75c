"""A server whose answers a test can hold back, and downloads from it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import yaml

from curate.acquire.download.child import MAIN
from curate.acquire.download.download import AcquireDownload
from curate.acquire.lists.list import AcquireList
from curate.core.recipe.pipeline import Pipeline
from pipelines.serve import Request, Response
from tests.acquire.server.server import FaultServer, FaultyConnection, hosts
from tests.codec.make_images import encoded, noise

HOSTS, THREADS = 4, 8
IMAGES = {f"{number}.jpg": encoded(noise(16 + number % 7, 16, seed=number), "jpeg") for number in range(40)}
LATE = "late.jpg"
"""An image that exists from some time on."""
PORTION_ROWS = 12
SECONDS = 60.0
"""Limit of a wait."""
LONG_SECONDS = 600.0

Row = dict[str, Any]


class HeldConnection(FaultyConnection):
    server: Site

    def handle(self, request: Request) -> None:
        if self.server.admits(self, request):
            super().handle(request)

    def admit(self, request: Request) -> None:
        """Answer a request that was held back."""
        if self.transport.is_closing():
            return
        self.busy = False
        super().handle(request)
        self.next_request()


class Site(FaultServer):
    """Serves IMAGES and all faults. A request that is held back is not logged before it is answered."""

    connection = HeldConnection

    def __init__(self) -> None:
        super().__init__(mounted=IMAGES, addresses=hosts(HOSTS))
        self.late = False
        """Whether LATE exists; until then it gets 503."""
        self._free: int | None = None
        """How many more requests are answered; None: all."""
        self._held: list[tuple[HeldConnection, Request]] = []
        self._arrived = threading.Condition()

    def answer(self, request: Request) -> Response:
        if request.path.endswith(LATE):
            return Response(IMAGES["0.jpg"]) if self.late else Response(b"not yet\n", 503)
        return super().answer(request)

    def hold(self, after: int) -> None:
        """Answer `after` requests, and hold back the others."""
        self.loop.call_soon_threadsafe(setattr, self, "_free", after)

    def wait(self, requests: int = 1) -> None:
        """Wait until `requests` requests are held back."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self._held) >= requests, SECONDS)

    def open(self) -> None:
        """Answer what was held back, and all that follows."""
        self.loop.call_soon_threadsafe(self._open)

    def admits(self, connection: HeldConnection, request: Request) -> bool:
        if self._free is None:
            return True
        if self._free > 0:
            self._free -= 1
            return True
        connection.busy = True
        with self._arrived:
            self._held.append((connection, request))
            self._arrived.notify_all()
        return False

    def _open(self) -> None:
        self._free = None
        held, self._held = self._held, []
        for connection, request in held:
            connection.admit(request)

    # --- downloads ---

    def rows(self) -> list[Row]:
        """A list with every kind of row: images at all hosts, images with two captions, failures."""
        found = [
            {"url": self.url(name, self.addresses[number % HOSTS]), "caption": f"caption {number}"}
            for number, name in enumerate(IMAGES)
        ]
        found += [{"url": row["url"], "caption": f"another {row['caption']}"} for row in found[::7]]
        bad = [
            self.at("/404"),
            self.at("/500"),
            self.at("/html.jpg"),
            self.at("/opt-out/x-robots-tag"),
            self.url(LATE),
            "file:///a",
        ]
        return [*found, *({"url": url, "caption": None} for url in bad)]

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Parameters of acquire.download, with which no time-out strikes on a busy machine."""
        patient = {"retries": 0, "timeout": LONG_SECONDS, "deadline_seconds": LONG_SECONDS, "thread_count": THREADS}
        allowed = {"allow_networks": ("127.0.0.0/8",), "allow_ports": (self.port,)}
        return {"namespace": "web", "contact": "tests@example.org"} | allowed | patient | changes

    def pipeline(self, path: Path | str, portion_rows: int = PORTION_ROWS, **changes: Any) -> Pipeline:
        """acquire.list and acquire.download, as stages `urls` and `pool`."""
        made = Pipeline().add("urls", AcquireList(path=str(path), portion_rows=portion_rows))
        return made.add("pool", AcquireDownload(**self.settings(**changes)), list="urls").check()

    def recipe(self, folder: Path, path: Path | str, **changes: Any) -> Path:
        """The same as a file."""
        settings = json.loads(json.dumps(self.settings(**changes)))
        stages = {
            "urls": {"op": "acquire.list", "path": str(path), "portion_rows": PORTION_ROWS},
            "pool": {"op": "acquire.download", "list": "urls", **settings},
        }
        file = folder / "recipe.yaml"
        file.write_text(yaml.safe_dump({"stages": stages}))
        return file


def write_list(file: Path, rows: Iterable[Row]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def ends(process: psutil.Process) -> bool:
    """Whether a process ends in time; one that its parent did not wait for counts as ended."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], SECONDS)[0])
    finally:
        os.close(handle)


def runners(process: int) -> list[psutil.Process]:
    """The runners that a process, or one that it has started, has started."""
    found = []
    for child in psutil.Process(process).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if str(MAIN) in child.cmdline():
                found.append(child)
    return found
