"""The map of a run: its points as bytes, its image, a region as rows and as a filter; in a browser with and without
JavaScript."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fastapi.testclient import TestClient
from PIL import Image

from curate.api import MapPoints, Run
from curate.kernels.region import inside
from curate.service.app import create_app
from curate.service.database.models import IndexedRun
from curate.service.service import Service
from tests.html.browser import Browser, Tab
from tests.mapped import ROWS, RUN, mapped_workspace
from tests.service.pages.served import served
from tests.service.people import People

PAGE, API = "/runs/mapped/map", "/api/v1/runs/mapped/map"


@pytest.fixture(scope="module")
def made_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mapped") / "workspace"
    mapped_workspace(path)
    return path


@pytest.fixture
def mapped(service: Service, people: People, made_workspace: Path) -> Service:
    shutil.copytree(made_workspace, people.workspace.url)
    about = {"title": "toys", "user": "operator", "target": "local", "state": "done", "submitted": True}
    with service.database.write() as session:
        session.add(
            IndexedRun(workspace_id=people.workspace.id, id="mapped", attempt_id=RUN, started=1e9, ended=1e9, **about)
        )
    return service


@pytest.fixture
def client(mapped: Service) -> TestClient:
    return TestClient(create_app(mapped, reconcile=False))


@pytest.fixture
def url(mapped: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(mapped.sandbox, "start", lambda: None)
    with served(create_app(mapped, reconcile=False)) as found:
        yield found


def test_points_as_bytes(client: TestClient, people: People) -> None:
    viewer = people.viewer.headers
    about = client.get(API, params={"colour": "clusters.cluster_1", "alive": "half"}, headers=viewer).json()
    answer = client.get(f"{API}/points", params={"colour": "clusters.cluster_1", "alive": "half"}, headers=viewer)
    assert answer.headers["content-type"] == "application/octet-stream" and len(answer.content) == 10 * about["points"]
    count = about["points"]
    seen = viewer | {"If-None-Match": answer.headers["etag"]}
    for params, wanted in (({}, (200, 10 * count)), ({"colour": "clusters.cluster_1", "alive": "half"}, (304, 0))):
        again = client.get(f"{API}/points", params=params, headers=seen)
        assert (again.status_code, len(again.content)) == wanted
    category, alive = (np.frombuffer(answer.content, np.uint8, count, at * count) for at in (8, 9))
    assert np.bincount(category).tolist() == [line["points"] for line in about["legend"]]
    assert alive.sum() == about["alive"] == ROWS // 2
    assert client.get(API, params={"colour": "nothing"}, headers=viewer).status_code == 422
    assert client.get(API, headers=people.stranger.headers).status_code == 404


def test_a_map_is_made_once(client: TestClient, people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], Run.map

    def counted(run: Run, *about: str) -> MapPoints:
        made.append(about)
        return make(run, *about)

    monkeypatch.setattr(Run, "map", counted)
    for path in (PAGE, f"{API}/points", f"{API}/points?stage=map", f"{PAGE}/image?stage=map", f"{PAGE}/point?point=1"):
        assert client.get(path, headers=people.viewer.headers).status_code == 200
    assert made == [("map", "", "")]


def test_the_image_shows_the_points(client: TestClient, people: People) -> None:
    answer = client.get(f"{PAGE}/image", params={"colour": "clusters.cluster_1"}, headers=people.viewer.headers)
    image = np.asarray(Image.open(io.BytesIO(answer.content)))
    assert answer.headers["content-type"] == "image/png" and image.shape == (700, 1000, 4)
    assert len({tuple(one) for one in image[image[:, :, 3] > 0].tolist()}) == 4


def test_a_viewer_without_the_grant_sees_points_only(client: TestClient, people: People) -> None:
    viewer, operator = (
        client.get(f"{PAGE}/point?point=3", headers=one.headers) for one in (people.viewer, people.operator)
    )
    assert "Hidden" in viewer.text and "<img" not in viewer.text
    assert "<img" in operator.text
    assert client.get(f"{PAGE}/point?point=9999", headers=people.operator.headers).status_code == 422


def test_bad_input_is_a_line_on_the_page(client: TestClient, people: People) -> None:
    for query, status, text in (
        ({"colour": "<script>alert(1)</script>"}, 422, "no stage over the rows"),
        ({"within": "1,2 3,4"}, 422, "expected 3 to 200 corners"),
        ({"within": "90,90 91,90 91,91"}, 200, "No row of the stage is inside"),
        ({"stage": "embed"}, 422, "placed no rows"),
    ):
        answer = client.get(PAGE, params=query, headers=people.operator.headers)
        assert answer.status_code == status and text in answer.text and "<script>alert" not in answer.text


WITHIN = "-9,-9 9,-9 9,9 -9,9"


def test_a_region_stays_on_its_map(client: TestClient, people: People) -> None:
    for stage, shown in (("map", True), ("near", False)):
        query = {"stage": stage, "drawn": "map", "within": WITHIN}
        text = client.get(PAGE, params=query, headers=people.operator.headers).text
        assert ("In the region" in text) == shown


def test_a_region_comes_after_what_its_map_is_made_of(
    client: TestClient, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> str:
        return client.get(PAGE, params={"within": WITHIN}, headers=people.operator.headers).text

    text = lines()
    assert '<option value="half" selected' in text and '<option value="one"' in text
    assert '<option value="tree"' not in text
    monkeypatch.setattr("curate.service.pages.data.maps.FILTERED", ())
    text = lines()
    assert "let a stage after the map read" in text and "has no recipe" not in text


def test_a_map_leaves_out_a_lost_shard(client: TestClient, people: People) -> None:
    next((Path(people.workspace.url) / "pools").rglob("shards/*.parquet")).unlink()
    text = client.get(PAGE, params={"colour": "width"}, headers=people.viewer.headers).text
    assert "1 shard cannot be read" in text and "5 of 6 shards" in text


def test_a_run_with_several_trees_offers_each(client: TestClient, people: People) -> None:
    text = client.get("/runs/mapped/clusters", headers=people.viewer.headers).text
    assert "stage=tree" in text and "stage=one" in text and 'aria-current="true"><bdi>profile' in text
    text = client.get("/runs/mapped/clusters?stage=one&cluster=0", headers=people.viewer.headers).text
    assert "where=%22alone.cluster_1%22+%3D+0" in text


# --- in a browser -----------------------------------------------------------------------------------------------------


def drawn(tab: Tab) -> None:
    until = time.monotonic() + 60
    while not tab.evaluate("document.querySelector('#map').dataset.drawn"):
        assert time.monotonic() < until
        time.sleep(0.05)


INK = """() => {
  const canvas = document.querySelector(".map-frame canvas"), gl = canvas.getContext("webgl2");
  const pixels = new Uint8Array(4 * canvas.width * canvas.height);
  gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
  let found = 0;
  for (let at = 3; at < pixels.length; at += 4) found += pixels[at] > 0;
  return found;
}"""


@pytest.mark.long
def test_a_lasso_counts_what_numpy_counts(browser: Browser, url: str, people: People, client: TestClient) -> None:
    with browser.tab(extra_http_headers=people.operator.headers) as tab:
        page = tab.page
        page.goto(f"{url}{PAGE}?colour=clusters.cluster_1&q=a+red+bicycle")
        drawn(tab)
        assert tab.evaluate(f"({INK})()") > ROWS
        assert page.locator("#found .tile").count() > 0
        frame = page.locator(".map-frame")
        frame.focus()
        page.keyboard.press("l")
        box: Any = frame.bounding_box()
        corners = [(0.1, 0.1), (0.6, 0.1), (0.6, 0.9), (0.1, 0.9)]
        spots = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
        page.mouse.move(*spots[0])
        page.mouse.down()
        for spot in spots[1:]:
            page.mouse.move(*spot)
        page.mouse.up()
        page.get_by_role("heading", name="In the region").wait_for()
        region = [
            [float(one) for one in pair.split(",")]
            for pair in page.locator("#selection").get_attribute("data-within").split()
        ]
        data = client.get(f"{API}/points", headers=people.viewer.headers).content
        xy = np.frombuffer(data, "<f4", len(data) // 10 * 2).reshape(-1, 2)
        wanted = int(inside(region, xy[:, 0], xy[:, 1]).sum())
        assert 0 < wanted < len(xy)
        assert tab.evaluate("document.querySelector('#map').dataset.lasso").split()[0] == str(wanted)
        assert page.locator("#selection .tile").count() == wanted
        lines = yaml.safe_load(page.locator("#selection pre").inner_text())["region"]
        assert (
            lines["op"] == "project.region" and lines["from"] == ["near", "map"] and lines["reason"] == "outside_region"
        )
        page.reload()
        assert page.locator("#selection .tile").count() == wanted
        assert [one for one in tab.messages if "ReadPixels" not in one] == []


@pytest.mark.long
def test_by_keyboard(browser: Browser, url: str, people: People) -> None:
    with browser.tab(extra_http_headers=people.operator.headers) as tab:
        page = tab.page
        page.goto(url + PAGE)
        drawn(tab)
        page.locator(".map-frame").focus()
        before = tab.evaluate("document.querySelector('.map-frame canvas').style.transform")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("+")
        assert tab.evaluate("document.querySelector('.map-frame canvas').style.transform") != before
        page.keyboard.press("0")
        page.keyboard.press("s")
        page.get_by_role("heading", name="In the region").wait_for()
        assert page.locator("#map-status").inner_text().startswith("5")


NO_WEBGL = "HTMLCanvasElement.prototype.getContext = () => null"


@pytest.mark.long
@pytest.mark.parametrize("scripts", [False, True])
def test_an_image_without_javascript_or_webgl(browser: Browser, url: str, people: People, scripts: bool) -> None:
    with browser.tab(java_script_enabled=scripts, extra_http_headers=people.operator.headers) as tab:
        tab.page.add_init_script(NO_WEBGL)
        tab.page.goto(url + PAGE)
        image, until = tab.page.get_by_role("img", name="Map of"), time.monotonic() + 60
        while image.evaluate("one => one.naturalWidth") != 1000:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert tab.page.locator("canvas").count() == 0 and tab.messages == []


@pytest.mark.long
def test_on_a_phone(browser: Browser, url: str, people: People) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
    with browser.tab(**phone, extra_http_headers=people.operator.headers) as tab:
        tab.page.goto(url + PAGE)
        drawn(tab)
        assert tab.evaluate("document.documentElement.scrollWidth") == 360
