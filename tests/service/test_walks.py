"""What people do in a browser with a dataset, from a question to its answer, with the service and a real Ray."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from curate.api import Slice, Workspace
from tests.html.browser import Browser
from tests.service.one_machine import embedded

STAGES: dict[str, dict[str, Any]] = {
    "pool": {"op": "acquire.folder", "path": "images", "namespace": "bikes"},
    "inspect": {"op": "image.inspect", "from": "pool"},
    "size": {"op": "image.filter", "from": "inspect", "min_side": 16},
    "all": {"op": "select.all", "from": "size"},
    "dataset": {"op": "pack.webdataset", "from": "all", "name": "bikes"},
}


@pytest.mark.nightly
@pytest.mark.long
@pytest.mark.timeout(400)
def test_why_an_image_is_missing_and_a_dataset_without_three(
    browser: Browser, tmp_path: Path, ray_head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "images").mkdir()
    for number in range(8):
        place = tmp_path / "images" / f"{number}.png"
        Image.new("RGB", (8 if number == 7 else 32,) * 2, (30 * number, 0, 0)).save(place)
        place.with_suffix(".txt").write_text("a red bicycle" if number < 5 else "a car")
    recipe = yaml.safe_dump({"stages": STAGES}, sort_keys=False)
    with (
        embedded(tmp_path / "ws", ray_head, {"images": str(tmp_path / "images")}) as site,
        browser.tab() as tab,
    ):
        page = tab.page
        page.goto(f"{site.url}/new")
        page.get_by_label("Token").fill(site.token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_label("Recipe (YAML)").fill(recipe)
        page.get_by_role("button", name="Submit").click()
        run = _done(page)

        page.goto(f"{site.url}/datasets")
        page.get_by_role("link", name="bikes").first.click()
        page.get_by_label("Find samples by key").fill("7.png")
        page.keyboard.press("Enter")  # the first of at most four clicks
        page.locator(".tile").first.click()
        assert "The stage size rejected it: too small" in page.locator("main").inner_text()

        page.goto(f"{site.url}/runs/{run}/thresholds?stage=inspect&column=width&at=20")
        page.get_by_role("button", name="Plan a run with it").click()
        assert "inspect_kept" in page.get_by_label("More settings").input_value()
        assert "inspect_kept" in page.locator("table").first.inner_text()  # a stage of the plan

        page.get_by_label("Find samples by key").fill("red bicycle")
        page.keyboard.press("Enter")
        for place in range(3):
            page.locator("ul[aria-label='By text'] input[name=key]").nth(place).check()
        page.get_by_text("Exclude samples from later runs").click()
        page.get_by_label("Why").fill("Not a bicycle")
        page.get_by_role("button", name="Exclude").click()
        page.get_by_role("link", name="start a new run").click()
        page.get_by_role("button", name="Submit").click()
        again = _done(page)
        assert tab.messages == []
    workspace = Workspace(str(tmp_path / "ws"))
    before, after = (set(_keys(workspace, one)) for one in (run, again))
    assert (len(before), before - after) == (7, set(workspace.tombstones()["key"])) and len(after) == 4


def _done(page: Any) -> str:
    """Wait for a run that was submitted; its id."""
    page.wait_for_url("**/runs/*")
    run = page.url.rpartition("/")[2].partition("?")[0]
    until = time.monotonic() + 120
    while page.locator("#head .state").inner_text().strip() != "Done":
        assert time.monotonic() < until, page.locator("main").inner_text()
        time.sleep(0.5)
    return str(run)


def _keys(workspace: Workspace, run: str) -> list[str]:
    found: list[str] = workspace.run(f"{run}-1").slice(Slice("all"), limit=100).table["key"].to_pylist()
    return found
