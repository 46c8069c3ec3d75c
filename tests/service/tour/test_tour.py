"""A new user in a real browser, with a real Ray: log in, submit, watch, stop, resume, tag, find the dataset by tag."""

from __future__ import annotations

import re
from typing import Any

import pytest

from distill.samples.sources.mixture import open_source
from distill.samples.sources.tagged import resolve
from tests.engine.gates import Gate
from tests.html.browser import Browser, Tab
from tests.service.tour.conftest import IMAGES, Tour

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]
PATIENCE = 120_000  # milliseconds
NAME = """() => {
  const one = document.activeElement;
  return (one.labels?.[0]?.innerText || one.getAttribute("aria-label") || one.innerText || "").trim();
}"""


def reach(page: Any, name: str) -> None:
    """Press Tab until the control of that name has the focus."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.evaluate(NAME) == name:
            return
    raise AssertionError(f"Tab does not reach {name!r}")


def press(page: Any, *names: str) -> None:
    for name in names:
        reach(page, name)
        page.keyboard.press("Enter")


def test_by_keyboard(browser: Browser, tour: Tour, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    with browser.tab() as tab:
        page = tab.page
        page.set_default_timeout(PATIENCE)
        _log_in(tab, tour)
        _submit(tab, tour.recipe({"op": "dear", "gate": str(tour.folder)}, "slow"))
        page.evaluate("window.loadedOnce = true")
        page.get_by_role("row", name=re.compile("^pool")).get_by_text("Done").wait_for()
        page.get_by_role("row", name=re.compile("^inspect")).get_by_text("Running").wait_for()
        gate.wait()
        assert page.evaluate("window.loadedOnce")  # all of it appeared without a reload
        press(page, "Stop", "Stop the run")
        page.get_by_text("asked to stop this run").wait_for()
        page.locator("#head .pill", has_text="Stopped").wait_for()
        for name in ("go", "arrived"):  # the gate is open: no process waits there any more
            (tour.folder / name).unlink()
            (tour.folder / name).touch()
        press(page, "Resume", "Resume the run")
        page.locator("#head .pill", has_text="Done").wait_for()
        page.get_by_role("row", name=re.compile("^pool")).get_by_text("Reused").wait_for()
        press(page, page.locator("#result-section a").first.inner_text())
        page.get_by_role("heading", name="Train on it").wait_for()
        source = _tag(page)
        assert tab.messages == []
    monkeypatch.setenv("CURATE_TOKEN", tour.token)
    assert len(open_source(resolve(source).dataset)) == IMAGES


def _log_in(tab: Tab, tour: Tour) -> None:
    tab.page.goto(tour.url)
    assert tab.evaluate(NAME) == "Token"  # it has the focus at once
    tab.page.keyboard.insert_text(tour.token)
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("heading", name="Runs", exact=True).wait_for()


def _submit(tab: Tab, recipe: str) -> None:
    page = tab.page
    press(page, "New run")
    page.get_by_role("heading", name="New run").wait_for()
    reach(page, "Recipe (YAML)")
    page.keyboard.insert_text(recipe.replace("images", "/etc"))
    press(page, "Check")
    page.get_by_text("1 mistake").wait_for()
    press(page, page.locator(".mistakes a").inner_text())
    assert page.evaluate(NAME) == "Recipe (YAML)"
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(recipe)
    press(page, "Plan")
    page.get_by_role("heading", name="Plan").wait_for()
    reach(page, "Title")
    page.keyboard.insert_text("By keyboard")
    press(page, "Submit")
    page.get_by_role("heading", name="By keyboard").wait_for()


def _tag(page: Any) -> str:
    """Set a tag; what a training then names."""
    reach(page, "Tag for this dataset")
    page.keyboard.insert_text("good")
    page.keyboard.press("Enter")
    source: str = page.locator(".copy code", has_text="@good").first.inner_text()
    return source


def test_without_javascript_on_a_phone(browser: Browser, tour: Tour) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "color_scheme": "dark"}
    with browser.tab(java_script_enabled=False, **phone) as tab:
        page = tab.page
        page.set_default_timeout(PATIENCE)
        page.goto(tour.url)
        page.get_by_label("Token").fill(tour.token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="New run").first.click()
        page.get_by_label("Recipe (YAML)").fill(tour.recipe({"op": "image.inspect"}, "plain"))
        page.get_by_role("button", name="Check").click()
        page.get_by_text("The recipe is correct").wait_for()
        page.get_by_role("button", name="Submit").click()
        page.wait_for_url("**/runs/*")
        while page.locator("#head .pill").inner_text() != "Done":
            assert page.locator("#head .pill").inner_text() in ("Queued", "Submitting", "Starting", "Running")
            page.reload()
        page.locator("#result-section a").first.click()
        page.get_by_label("Tag for this dataset").fill("good")
        page.get_by_role("button", name="Set tag").click()
        assert page.locator(".copy code", has_text="@good").first.inner_text().endswith("plain@good")
        assert tab.messages == []
