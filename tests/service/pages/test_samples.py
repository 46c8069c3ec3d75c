"""Pages of samples over a real run: the grid, a sample, rejects, thumbnails, files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from curate.api import Pipeline, Workspace, make_stage
from curate.service.app import create_app
from curate.service.database.models import IndexedRun
from curate.service.samples.looking import blurs
from curate.service.samples.samples import get_sample
from curate.service.service import Service
from tests.html.browser import Browser, Tab, width_on_a_phone
from tests.service.curated import Curated
from tests.service.pages.markup import Markup
from tests.service.pages.served import served
from tests.service.people import People

HOSTILE = ("<img src=x onerror=alert(1)>", "'\"><svg onload=alert(2)>", "{{ 7*7 }}", "a&lt;b", "javascript:alert(3)")
BASE = "/runs/first/samples"


@pytest.fixture
def client(service: Service, people: People, curated: Curated, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(service.sandbox, "start", lambda: None)
    with TestClient(create_app(service, reconcile=False), base_url="http://127.0.0.1:8080") as made:
        made.headers.update(people.operator.headers)
        yield made


def test_the_pages_are_well_formed(client: TestClient, people: People, curated: Curated) -> None:
    for path in (
        BASE,
        f"{BASE}?stage=pool&rejected=*",
        f"{BASE}?stage=pool&where=width%20%3E%209999",
        "/runs/first/rejects",
    ):
        text = client.get(path).text
        assert Markup(text).problems == [], path
    text = client.get(f"{BASE}/{curated.key}").text
    assert Markup(text).problems == [] and "In the dataset" in text and f"/files/{curated.key}" in text
    hidden = client.get(f"{BASE}/{curated.key}", headers=people.viewer.headers).text
    assert Markup(hidden).problems == [] and "see_pixels" in hidden and "/thumbnails/" not in hidden
    assert "/thumbnails/" not in client.get(BASE, headers=people.viewer.headers).text


def test_rejects_are_blurred_where_the_recipe_says_so_or_downloads(client: TestClient) -> None:
    assert blurs({}, ["acquire.list", "acquire.download"]) and not blurs({}, ["acquire.folder", "image.inspect"])
    assert blurs({"vars": {"blur": True}}, ["acquire.folder"])
    assert not blurs({"vars": {"blur": False}}, ["acquire.download"])
    assert 'class="grid blurred"' not in client.get("/runs/first/rejects").text
    assert 'class="grid blurred"' in client.get("/runs/first/rejects?blur=1").text


def test_the_page_names_the_error_of_an_expression(client: TestClient) -> None:
    answer = client.get(f"{BASE}?stage=pool&where={quote('none > <b>1')}")
    assert answer.status_code == 422
    assert Markup(answer.text).problems == [] and "Please correct this" in answer.text and "&lt;b&gt;" in answer.text
    assert client.get(f"{BASE}?stage=none").status_code == 422
    for limit in ("0", "201", "0001000"):
        assert client.get(f"{BASE}?limit={limit}").status_code == 422


def test_a_shard_that_is_gone_is_named_and_the_others_are_there(client: TestClient, curated: Curated) -> None:
    rows = client.get("/api/v1/runs/first/rows?stage=pool").json()["rows"]
    first, last = rows[0], rows[-1]
    (table,) = Path(curated.workspace.url).glob(f"pools/*/shards/{first['shard']}.parquet")
    table.unlink()
    text = client.get(f"{BASE}?stage=pool&limit=100").text
    assert Markup(text).problems == [] and "1 shard cannot be read" in text
    assert f"/samples/{last['key']}" in text and f"/samples/{first['key']}" not in text
    for path in (
        f"{BASE}/{first['key']}", "/runs/first/rejects", "/runs/first/captions", "/find?q=zebra",
        "/runs/first/thresholds?stage=pool&column=size", f"/runs/first/thumbnails/{first['shard']}/{first['row']}",
    ):  # fmt: skip
        answer = client.get(path)
        assert answer.status_code < 500, path
        assert "Traceback" not in answer.text


def test_a_dataset_that_lacks_a_sample_is_not_done_in_its_story(client: TestClient) -> None:
    rejected = client.get("/api/v1/runs/first/rows?stage=pool").json()["rows"]
    stories = [client.get(f"{BASE}/{row['key']}").text for row in rejected]
    lost = [text for text in stories if "Not in the dataset." in text]
    assert lost and all('id="s-dataset" class="idle"' in text for text in lost)


def test_thumbnails_and_files_are_never_pages(
    client: TestClient, service: Service, people: People, curated: Curated
) -> None:
    sample = get_sample(service, people.operator.principal, "first", curated.key)
    path = f"/runs/first/thumbnails/{sample.shard}/{sample.row}"
    found = client.get(path)
    assert found.headers["content-type"] == "image/webp" and "private" in found.headers["cache-control"]
    assert "default-src 'self'" in found.headers["content-security-policy"]
    again = client.get(path, headers={"If-None-Match": found.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    original = client.get(f"/runs/first/files/{curated.key}")
    assert original.headers["content-type"] == "application/octet-stream"
    assert original.headers["content-disposition"].startswith("attachment;")
    assert original.headers["x-content-type-options"] == "nosniff"
    assert Image.open(io.BytesIO(original.content)).size
    for closed in (path, f"/runs/first/files/{curated.key}", "/runs/first/reports/any"):
        assert client.get(closed, headers=people.viewer.headers).status_code == 403


@pytest.fixture
def hostile(service: Service, people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A run over files with hostile names, of which one is corrupt; its URL."""
    monkeypatch.setattr(service.sandbox, "start", lambda: None)
    (tmp_path / "images").mkdir()
    for number, name in enumerate(HOSTILE):
        folder = tmp_path / "images" / name.replace("/", "_")
        folder.mkdir()
        Image.new("RGB", (40, 30), (50 * number, 0, 0)).save(folder / "one.png")
        (folder / "one.txt").write_text(name)
    data = (folder / "one.png").read_bytes()
    (folder / "broken.png").write_bytes(data[: len(data) // 2])
    recipe = Pipeline().add("pool", make_stage("acquire.folder", path=str(tmp_path / "images"), namespace="hostile"))
    recipe.add("inspect", make_stage("image.inspect"), "pool")
    recipe.add("few", make_stage("filter.where", keep="strpos(source_id, '7') = 0", reason="seven"), "inspect")
    recipe.add("all", make_stage("select.all"), "few").add("dataset", make_stage("pack.webdataset", name="h"), "all")
    Workspace(people.workspace.url).submit(recipe.check(), run_id="first-1").wait()
    about = {"title": HOSTILE[0], "user": "operator", "target": "local", "state": "done", "submitted": True}
    with service.database.write() as session:
        session.add(
            IndexedRun(
                workspace_id=people.workspace.id, id="first", attempt_id="first-1", started=1e9, ended=2e9, **about
            )
        )
    with served(create_app(service, reconcile=False)) as url:
        yield url


def log_in(tab: Tab, url: str, people: People) -> None:
    tab.page.on("dialog", lambda dialog: pytest.fail(f"a script of others ran: {dialog.message}"))
    tab.page.goto(f"{url}/login")
    tab.page.get_by_label("Token").fill(people.operator.token)
    tab.page.get_by_role("button", name="Log in").click()
    tab.page.get_by_role("heading", name="Runs").wait_for()


@pytest.mark.long
def test_hostile_names_are_texts_and_the_grid_works_by_keyboard(browser: Browser, hostile: str, people: People) -> None:
    with browser.tab() as tab:
        log_in(tab, hostile, people)
        tab.page.goto(f"{hostile}{BASE}?stage=few&limit=2&columns=source_id")
        tab.page.locator(".scroller .tile img[src]").nth(3).wait_for()
        assert "1 of 1 shard" in (tab.page.locator("#searched").text_content() or "")
        assert tab.page.locator(".scroller .tile:visible").count() == 4
        tab.page.locator(".scroller").focus()
        tab.page.keyboard.press("End")
        assert tab.page.locator(".scroller .tile[aria-selected=true]").get_attribute("aria-posinset") == "4"
        tab.page.keyboard.press("Home")
        tab.page.keyboard.press("ArrowRight")
        tab.page.keyboard.press("Enter")
        tab.page.get_by_text("In the dataset.").wait_for()
        assert width_on_a_phone(tab, 360) == 360
        tab.page.goto(f"{hostile}/runs/first/rejects?stage=few")
        tab.page.get_by_role("heading", name="seven").wait_for()
        assert tab.evaluate("getComputedStyle(document.querySelector('.grid img')).filter") == "none"
        tab.page.get_by_label("Blur images").check()
        tab.page.get_by_role("button", name="Show").click()
        tab.page.wait_for_url("**blur=1")
        assert tab.evaluate("getComputedStyle(document.querySelector('.grid img')).filter").startswith("blur")
        assert tab.messages == []


@pytest.mark.long
def test_the_grid_reads_without_javascript(browser: Browser, hostile: str, people: People) -> None:
    with browser.tab(java_script_enabled=False) as tab:
        log_in(tab, hostile, people)
        tab.page.goto(f"{hostile}{BASE}?stage=few&limit=2")
        assert tab.page.locator(".grid .tile").count() == 2
        tab.page.get_by_role("link", name="Next page").click()
        assert tab.page.locator(".grid .tile").count() == 2
        tab.page.locator(".grid .tile").first.click()
        tab.page.get_by_text("In the dataset.").wait_for()
