"""Submit to running on a real local Ray, against Ray's own time: a bare job `true` by the same job server, in turn."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from PIL import Image

from bench.kit.measure import line
from bench.service.world import SUBMITTED
from curate.api import JobServer, new_run_id

WAIT_SECONDS = 300.0
BEGUN = ("running", "stopping", "done", "failed")


class Served:
    """The embedded service, as `make serve` starts it."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token

    def ask(self, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{self._url}/api/v1/{path}", data, headers)) as answer:
            return json.load(answer)

    def items(self, path: str) -> list[Any]:
        found = self.ask(path)
        return list(found["items"] if isinstance(found, dict) else found)


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    words = [
        str(Path(sys.executable).parent / "curate"),
        "service",
        "serve",
        "--embedded",
        str(folder / "embedded"),
        "--port",
        "0",
    ]
    with (folder / "embedded.log").open("wb") as log:
        process = subprocess.Popen(
            [*words, "--root", f"images={folder / 'pictures'}"], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        said = dict(process.stdout.readline().strip().split(": ", 1) for _ in range(2))
        yield Served(said["url"], said["token"])
    finally:
        process.terminate()
        process.wait()


def starting(kept: Path, count: int) -> None:
    with TemporaryDirectory(dir=kept) as place:
        _measured(Path(place), count)


def _measured(folder: Path, count: int) -> None:
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for number in range(4):
        Image.new("RGB", (64, 64), (40 * number, 90, 120)).save(folder / "pictures" / f"{number}.png")
    with serving(folder) as served:
        until(lambda: served.items("targets")[0]["health"]["healthy"])
        target = served.items("targets")[0]
        server = JobServer(target["address"], (folder / "embedded-service" / "ray-token").read_text().strip())
        bare(server)  # the first job of a Ray is slower
        times = [(bare(server), submitted(served)) for _ in range(count)]
        server.close()
    own, ours = (median(one) for one in zip(*times, strict=True))
    line("submit to running, over Ray's own (aim 10)", f"{ours - own:.1f} s", f"{ours:.1f} s against {own:.1f} s")
    line("  each", ", ".join(f"{two - one:.1f}" for one, two in times), "s")


def bare(server: JobServer) -> float:
    """Seconds until the entrypoint of a bare job has begun, which is over at once."""
    name, began = new_run_id(), time.monotonic()
    server.submit(name, "true", {}, {})
    until(lambda: (job := server.info(name)) is not None and job.status == "succeeded")
    return time.monotonic() - began


def submitted(served: Served) -> float:
    """Seconds from the request to the state `running`."""
    recipe = yaml.safe_dump(SUBMITTED, sort_keys=False)
    workspace = served.items("workspaces")[0]["name"]
    began = time.monotonic()
    run = served.ask("runs", {"workspace": workspace, "recipe": recipe})["id"]
    until(lambda: served.ask(f"runs/{run}")["state"] in BEGUN)
    seconds = time.monotonic() - began
    until(lambda: served.ask(f"runs/{run}")["state"] in ("done", "failed"))
    return seconds


def until(true: Any) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError("the local Ray or a run did not get there in time")
        time.sleep(0.1)
