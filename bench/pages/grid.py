"""The grid of samples: thumbnails beside a bare loop that reads, decodes and encodes them, and scrolling over all rows.

python -m bench.pages.grid [ROWS [FOLDER]]    FOLDER keeps the workspace, which takes minutes to make
"""

from __future__ import annotations

import html
import io
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar

import httpx2
import numpy as np
from PIL import Image

from bench.kit.measure import line, load
from curate.api import Pipeline, Run, Slice, Workspace
from curate.codec import images
from curate.core.contracts import Incoming, Portion, Source
from curate.service.app import create_app
from curate.service.database.migrate import migrate
from curate.service.database.models import IndexedRun
from curate.service.service import Service
from curate.service.settings import Limits, Settings
from tests.html.browser import Browser
from tests.service.pages.served import served
from tests.service.people import people

ROWS, SHARD_ROWS, PHOTOS = 300_000, 3_000, 1_000
SHOWN, CONNECTIONS = 200, 6
PAIRS = 3
AIM_COLD, AIM_FIRST, AIM_CACHED, AIM_FRAME = 1.5, 0.5, 0.3, 0.1
RUN = "grid"
SCROLL = """async () => {
    const box = document.querySelector(".scroller"), times = [];
    let last = performance.now();
    for (let frame = 0; frame < 180; frame++) {
        await new Promise(requestAnimationFrame);
        times.push(performance.now() - last);
        last = performance.now();
        box.scrollTop += 900;
    }
    return times;
}"""
SHOW = """async () => {
    const began = performance.now();
    const found = [...document.querySelectorAll("img")];
    for (const one of found) one.loading = "eager";
    await Promise.all(found.map((one) => one.decode().catch(() => null)));
    return [found.length, performance.now() - began];
}"""


PLAIN = """document.addEventListener("readystatechange", () =>
    document.querySelector("[data-more]")?.removeAttribute("data-more"))"""
"""All images at once, as without JavaScript."""


class Rows(Source):
    """The first PHOTOS are JPEGs of 640 x 480, each different; the others are small."""

    op: ClassVar[str] = "bench.grid_rows"
    unique_keys: ClassVar[bool] = True
    rows: int

    def plan(self) -> list[Portion]:
        return [Portion({"start": start}, SHARD_ROWS) for start in range(0, self.rows, SHARD_ROWS)]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        start = portion.content["start"]
        for number in range(start, start + SHARD_ROWS):
            rng = np.random.default_rng(number)
            small = Image.fromarray(rng.integers(0, 255, (12, 16, 3), np.uint8))
            sink = io.BytesIO()
            (small.resize((640, 480), Image.Resampling.BICUBIC) if number < PHOTOS else small).save(sink, "JPEG")
            yield Incoming(f"{number:09d}", ext="jpg", data=sink.getvalue(), caption=f"image {number}")


def bare(run: Run, rows: list[dict[str, object]]) -> float:
    began = time.perf_counter()
    for row in rows:
        data = run.file(str(row["shard"]), int(str(row["row"]))).read()
        images.thumbnail(data.bytes(), 160)  # type: ignore[union-attr]
    return time.perf_counter() - began


def fetched(url: str, headers: dict[str, str], where: str) -> tuple[float, float]:
    """Seconds until the first row of images, and until all: the page, then what it names, as a browser asks."""
    with httpx2.Client(base_url=url, headers=headers, timeout=60) as client:
        began = time.perf_counter()
        page = client.get(f"/runs/{RUN}/samples", params={"stage": "pool", "limit": SHOWN, "where": where})
        paths = [html.unescape(path) for path in re.findall('src="(/runs/[^"]+)"', page.text)]
        assert len(paths) == SHOWN, (page.status_code, len(paths), re.findall("searched [^<]*", page.text))

        def get(path: str) -> float:
            assert client.get(path).headers["content-type"] == "image/webp"
            return time.perf_counter() - began

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            times = sorted(pool.map(get, paths))
    return times[6], times[-1]


def measure(rows: int, folder: Path) -> None:
    workspace = Workspace(str(folder / "workspace"))
    if not (folder / "workspace" / "runs" / RUN).exists():
        workspace.submit(Pipeline().add("pool", Rows(namespace="grid", rows=rows)).check(), run_id=RUN).wait()
    run = workspace.run(RUN)
    with tempfile.TemporaryDirectory() as state:
        limits = Limits(requests_per_minute=10**6, thumbnails_per_minute=10**6)
        with closing(Service.of(Settings(database=f"sqlite:///{state}/service.db", limits=limits))) as service:
            migrate(service.database)
            known = people(service, workspace.root)
            with service.database.write() as session:
                about = {"state": "done", "started": 1e9, "ended": 2e9}
                session.add(IndexedRun(workspace_id=known.workspace.id, id=RUN, attempt_id=RUN, **about))
            with served(create_app(service, reconcile=False)) as url:
                _thumbnails(run, url, known.operator.headers)
                _browse(url, known.operator.token, rows)


def _thumbnails(run: Run, url: str, headers: dict[str, str]) -> None:
    ratios, firsts = [], []
    with ProcessPoolExecutor(1, get_context("spawn")) as browser:  # in this process it would take turns with the server
        browser.submit(fetched, url, headers, f"source_id >= '{PAIRS * SHOWN:09d}'").result()
        for pair in range(PAIRS):
            where = f"source_id >= '{pair * SHOWN:09d}'"
            rows = run.slice(Slice("pool", where=where), limit=SHOWN).table.to_pylist()
            alone = bare(run, rows)
            first, cold = browser.submit(fetched, url, headers, where).result()
            ratios.append(cold / ((alone + bare(run, rows)) / 2))
            firsts.append(first)
    line(f"{SHOWN} thumbnails, cold, to a bare loop", f"{statistics.median(ratios):.2f}", f"aim {AIM_COLD}, {load()}")
    line("first row of them", f"{statistics.median(firsts):.2f} s", f"aim {AIM_FIRST} s")


def _browse(url: str, token: str, rows: int) -> None:
    with Browser().tab(viewport={"width": 1000, "height": 700}) as tab:
        tab.page.goto(f"{url}/login")
        tab.page.get_by_label("Token").fill(token)
        tab.page.get_by_role("button", name="Log in").click()
        tab.page.get_by_role("heading", name="Runs").wait_for()
        tab.page.goto(f"{url}/runs/{RUN}/samples?stage=pool&limit=60")
        tab.page.locator(".scroller .tile img[src]").first.wait_for()
        frames = sorted(tab.evaluate(f"({SCROLL})()"))
        p95 = frames[int(0.95 * len(frames))]
        line(f"a frame while scrolling over {rows:,}, p95", f"{p95:.0f} ms", f"aim {1000 * AIM_FRAME:.0f} ms, {load()}")
        box = tab.page.locator(".scroller")
        box.focus()
        began = time.perf_counter()
        tab.page.keyboard.press("End")
        box.locator(f".tile[aria-posinset='{rows}'][href]").wait_for(timeout=300_000)
        line("End: until the last sample is there", f"{time.perf_counter() - began:.1f} s", "reads all rows")
    with Browser().tab() as tab:
        tab.page.add_init_script(PLAIN)
        tab.page.goto(f"{url}/login")
        tab.page.get_by_label("Token").fill(token)
        tab.page.get_by_role("button", name="Log in").click()
        tab.page.get_by_role("heading", name="Runs").wait_for()
        page = f"{url}/runs/{RUN}/samples?stage=pool&limit={SHOWN}"
        tab.page.goto(page)
        tab.evaluate(f"({SHOW})()")
        tab.page.goto(page)
        found, milliseconds = tab.evaluate(f"({SHOW})()")
        line(f"{found} images that the browser has", f"{milliseconds:.0f} ms", f"aim {1000 * AIM_CACHED:.0f} ms")


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    if len(sys.argv) > 2:
        measure(rows, Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            measure(rows, Path(folder))


if __name__ == "__main__":
    main()
