"""The map of a million rows in headless Chromium: ready, panning, drawn again, a lasso; pixels are counted, since a
blank canvas pans well.

python -m bench.pages.map [ROWS [FOLDER]]    FOLDER keeps the workspace, which takes minutes to make

Chromium draws on the CPU (SwiftShader). The first page of a run reads the tables of all shards; later ones read the
kept points.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from fastapi import Request

from bench.kit.measure import line, load
from curate.api import Pipeline, Workspace, make_stage
from curate.core.contracts import Batch, Incoming, Map, Portion, Source
from curate.core.vectors import to_binary, vector_type
from curate.service.app import create_app
from curate.service.auth.dependency import principal
from curate.service.auth.roles import Principal, Role
from curate.service.database.migrate import migrate
from curate.service.database.models import TargetRow, WorkspaceRow
from curate.service.reconcile.index import discover
from curate.service.service import Service
from curate.service.settings import Settings
from tests.html.browser import Browser, Tab
from tests.service.pages.served import served

ROWS, SHARD_ROWS, DIM, GROUPS = 1_000_000, 10_000, 16, 40
RUN = "map"
PAN_SECONDS = 3.0
AIMS = {"first page of the run": 2.0, "ready": 2.0, "pan p95": 0.050, "redraw": 1.5, "lasso": 0.100}
INK = """() => {
  const canvas = document.querySelector(".map-frame canvas"), gl = canvas?.getContext("webgl2");
  if (!gl || !canvas.width) return 0;
  const pixels = new Uint8Array(4 * canvas.width * canvas.height);
  gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
  let found = 0;
  for (let at = 3; at < pixels.length; at += 4) found += pixels[at] > 0;
  return found;
}"""
FRAMES = """() => {
  window.frames_ = [];
  let last = performance.now();
  const tick = (now) => { window.frames_.push(now - last); last = now; requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
}"""


class Numbers(Source):
    op: ClassVar[str] = "bench.map_rows"
    unique_keys: ClassVar[bool] = True
    rows: int

    def plan(self) -> list[Portion]:
        return [Portion({"first": first}, SHARD_ROWS) for first in range(0, self.rows, SHARD_ROWS)]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        for number in range(portion.content["first"], portion.content["first"] + SHARD_ROWS):
            yield Incoming(f"{number:09d}", ext="bin", data=b"-", caption=str(number))


class Grouped(Map):
    """Vectors (n, DIM) in groups, and the group."""

    op: ClassVar[str] = "bench.map_vectors"

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("embedding", vector_type(DIM)), pa.field("label", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        numbers = np.array([int(value) for value in batch.column("caption")])
        centres = np.random.default_rng(0).standard_normal((GROUPS, DIM)) * np.linspace(3, 0.3, DIM)
        noise = np.stack([np.random.default_rng(one).standard_normal(DIM) for one in numbers.tolist()])
        found = centres[numbers % GROUPS] + 0.5 * noise
        return {
            "embedding": to_binary(found.astype(np.float32))[0],
            "label": [f"group {one % GROUPS}" for one in numbers],
        }


def build(folder: Path, rows: int) -> None:
    """Resumes."""
    made = Pipeline().add("pool", Numbers(namespace="bench", rows=rows)).add("vectors", Grouped(), "pool")
    made.add("axes", make_stage("project.fit"), "vectors")
    made.add("map", make_stage("project.place"), "vectors", projection="axes")
    place = Workspace(str(folder))
    if not place.has(RUN) or place.run(RUN).status().state != "done":
        place.submit(made.check(), run_id=RUN).wait()


@contextmanager
def site(workspace: Path, state: Path) -> Iterator[str]:
    """The service over a workspace, for one person who needs no token."""
    service = Service.of(Settings(database=f"sqlite:///{state / 'service.db'}"))
    migrate(service.database)
    with service.database.write() as session:
        session.add(TargetRow(name="local", address="http://127.0.0.1:1", created=0.0))
        session.flush()
        place = WorkspaceRow(name="main", url=str(workspace), target="local", created=0.0)
        session.add(place)
        session.flush()
        session.expunge(place)
    discover(service, place, Workspace(str(workspace)))
    app = create_app(service, reconcile=False)
    who = Principal(user_id=1, user="bench", token_id="t", everywhere=Role.ADMIN, token_role=Role.ADMIN)

    def reader(request: Request) -> Principal:
        request.state.csrf = ""
        return who

    app.dependency_overrides[principal] = reader
    with served(app) as url:
        yield url
    service.close()


def until_drawn(tab: Tab, began: float) -> float:
    while not tab.evaluate("document.querySelector('#map')?.dataset.drawn"):
        assert time.perf_counter() - began < 120, tab.messages
        time.sleep(0.02)
    return time.perf_counter() - began


def first_ink(tab: Tab, began: float) -> float:
    """Seconds until points are on the canvas: a fair sample of them."""
    while not tab.evaluate("document.querySelector('#map')?.hasAttribute('data-drawn')"):
        assert time.perf_counter() - began < 120, tab.messages
        time.sleep(0.01)
    return time.perf_counter() - began


def measure(tab: Tab, url: str) -> dict[str, float]:
    page, found = tab.page, dict[str, float]()
    for name in ("first page of the run", "ready"):
        began = time.perf_counter()
        page.goto(f"{url}/runs/{RUN}/map?colour=label", timeout=120_000)
        found[name] = first_ink(tab, began)
        found[f"{name}, all points"] = until_drawn(tab, began)
    found["ink"] = tab.evaluate(f"({INK})()")
    box = page.locator(".map-frame").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.evaluate(f"({FRAMES})()")
    page.mouse.move(x, y)
    page.mouse.down()
    began, at = time.perf_counter(), 0
    while time.perf_counter() - began < PAN_SECONDS:
        at += 1
        page.mouse.move(x + 80 * np.sin(at / 20), y + 60 * np.cos(at / 20))
    frames = sorted(tab.evaluate("window.frames_.splice(0)"))
    began = time.perf_counter()
    page.mouse.up()
    time.sleep(0.02)
    found["redraw"] = until_drawn(tab, began)
    found["pan frames"], found["pan p95"] = len(frames), frames[int(0.95 * len(frames))] / 1000
    found["ink after"] = tab.evaluate(f"({INK})()")
    page.keyboard.press("0")
    page.locator("[data-tool=lasso]").click()
    took = []
    for _ in range(3):
        page.mouse.move(x - box["width"] * 0.14, y - box["height"] * 0.14)
        page.mouse.down()
        for angle in np.linspace(0, 6, 60):
            radius = 0.09 * (1 + 0.1 * np.sin(5 * angle))
            page.mouse.move(x - box["width"] * radius * np.cos(angle), y - box["height"] * radius * np.sin(angle))
        page.mouse.up()
        time.sleep(0.5)
        count, ms = tab.evaluate("document.querySelector('#map').dataset.lasso").split()
        took.append(float(ms) / 1000)
    found["lasso"], found["lasso share"] = (
        statistics.median(took),
        int(count) / tab.evaluate("Number(document.querySelector('#map').dataset.drawn) || 1"),
    )
    return found


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as state:
        folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(state, "workspace")
        build(folder, rows)
        headers = {"Authorization": "Bearer bench"}
        with site(folder, Path(state)) as url, Browser().tab(extra_http_headers=headers) as tab:
            found = measure(tab, url)
    for name, value in found.items():
        aim = AIMS.get(name)
        unit = "" if name.startswith(("ink", "pan frames", "lasso share")) else " s"
        note = "" if aim is None else f"aim {aim:g} s: {'met' if value <= aim else 'MISSED'}"
        line(f"map of {rows:,} rows: {name}", f"{value:,.3f}{unit}" if unit else f"{value:,.3g}", note)
    line("machine", load())
    assert found["ink"] > 1000 and found["ink after"] > 1000, "the canvas is blank"


if __name__ == "__main__":
    main()
