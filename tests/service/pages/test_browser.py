"""The pages in a real browser: by keyboard, on a phone, live, without JavaScript."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from curate.service.app import create_app
from curate.service.runs import recipes
from curate.service.runs.shapes import Checked, Mistake
from curate.service.service import Service
from curate.service.states import State
from tests.draw import drawn
from tests.html.browser import PHONE, Browser, serious
from tests.service.pages import examples
from tests.service.pages.served import served
from tests.service.pages.site import Site
from tests.service.pages.test_pages import PATHS
from tests.service.people import People
from tests.service.rest.site import RECIPE, admitted

DONE = examples.run(State.DONE)


def test_log_in_submit_and_watch(
    browser: Browser, service: Service, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.sandbox, "start", lambda: None)
    monkeypatch.setattr(recipes, "admitted", admitted)
    with served(create_app(service, reconcile=False)) as url, browser.tab() as tab:
        page = tab.page
        page.goto(f"{url}/runs")
        page.get_by_label("Token").fill(people.operator.token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("No runs yet").wait_for()
        page.get_by_role("link", name="New run").first.click()
        page.get_by_label("Recipe (YAML)").fill(RECIPE)
        page.get_by_label("Title").fill("From the page")
        page.get_by_role("button", name="Submit").click()
        page.get_by_role("heading", name="From the page").wait_for()
        assert page.locator("#dag svg .name").all_text_contents() == ["pool", "facts"]
        page.locator("#stop summary").click()
        page.get_by_role("button", name="Stop the run").click()
        page.get_by_text("asked to stop this run").wait_for()
        assert tab.messages == []


@pytest.fixture(scope="module")
def live_site(_site: Site) -> Iterator[str]:
    with served(_site.app) as url:
        yield url


@pytest.fixture
def url(site: Site, live_site: str) -> str:
    return live_site


@pytest.mark.long
@pytest.mark.drawn
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_a_phone(browser: Browser, site: Site, url: str, scheme: str) -> None:
    with browser.tab(**PHONE, color_scheme=scheme) as tab:
        for path in PATHS:
            tab.page.goto(url + path)
            assert (path, tab.evaluate("document.documentElement.scrollWidth")) == (path, 360)
            for link in tab.page.locator(".top nav a").all():
                place = link.bounding_box()
                assert place is not None and place["x"] >= 0 and place["x"] + place["width"] <= 360, link.inner_text()
            for menu in tab.page.locator(".menu > summary").all():
                if not menu.is_visible():
                    continue
                menu.click()
                panel = menu.locator("xpath=following-sibling::div").bounding_box()
                assert panel is None or (panel["x"] >= 0 and panel["x"] + panel["width"] <= 360)
                tab.page.keyboard.press("Escape")
        assert tab.messages == []


CONTRASTS = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => {
    const linear = (one) => one <= .04045 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4;
    const [r, g, b] = rgb.map((one) => linear(one / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = parts(getComputedStyle(one).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("main *, header *")) {
    const own = [...element.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("svg, .quiet, option")) continue;
    const ink = luminance(parts(getComputedStyle(element).color).slice(0, 3)), page = luminance(ground(element));
    const contrast = (Math.max(ink, page) + .05) / (Math.min(ink, page) + .05);
    if (contrast < 4.5) found.push(`${element.outerHTML.slice(0, 80)}: ${contrast.toFixed(2)}`);
  }
  return found;
}"""


@pytest.mark.long
@pytest.mark.drawn
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser: Browser, site: Site, url: str, scheme: str) -> None:
    with browser.tab(color_scheme=scheme) as tab:
        for state in State:
            site.answers["runs.run"] = examples.run(state)
            tab.page.goto(f"{url}/runs/r-1")
            assert tab.evaluate(CONTRASTS) == []
        for path in PATHS:
            tab.page.goto(url + path)
            assert (path, tab.evaluate(CONTRASTS)) == (path, [])
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(247, 246, 243)", "dark": "rgb(19, 21, 25)"}[scheme]


@pytest.mark.long
def test_axe_finds_nothing_serious(browser: Browser, site: Site, url: str) -> None:
    assert serious(browser, [url + path for path in drawn(PATHS)]) == []


FOCUSABLE = """() => {
  const all = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")];
  const seen = all.filter((one) => one.checkVisibility({ visibilityProperty: true }) && one.tabIndex >= 0);
  return seen.filter((one) => one.type !== "hidden" && !one.disabled).length;
}"""
VISIBLE_FOCUS = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  window.seen ??= new Set();
  if (one === document.body) return "end";
  if (window.seen.has(one)) return "again";
  window.seen.add(one);
  return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 ? "shown" : one.outerHTML.slice(0, 100);
}"""


@pytest.mark.long
@pytest.mark.parametrize("path", ["/runs", "/runs/r-1", "/new?template=quickstart", "/people/ada"])
def test_the_keyboard_reaches_everything_and_leaves_again(browser: Browser, site: Site, url: str, path: str) -> None:
    site.answers["runs.run"] = DONE
    with browser.tab() as tab:
        tab.page.goto(url + path)
        wanted = tab.evaluate(FOCUSABLE)
        found = []
        for _ in range(wanted + 5):
            tab.page.keyboard.press("Tab")
            found.append(tab.evaluate(VISIBLE_FOCUS))
            if found[-1] in ("end", "again"):
                break
        assert set(found[:-1]) == {"shown"} and len(found) - 1 == wanted


@pytest.mark.long
def test_the_skip_link_and_the_menus_by_keyboard(browser: Browser, site: Site, url: str) -> None:
    with browser.tab() as tab:
        tab.page.goto(f"{url}/runs")
        tab.page.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
        tab.page.keyboard.press("Enter")
        assert tab.evaluate("document.activeElement.id") == "main"
        tab.page.locator("#account summary").focus()
        tab.page.keyboard.press("Enter")
        assert tab.page.get_by_role("button", name="Log out").is_visible()
        tab.page.keyboard.press("Tab")
        tab.page.keyboard.press("Escape")
        assert not tab.page.get_by_role("button", name="Log out").is_visible()
        assert tab.evaluate("document.activeElement.parentElement.id") == "account"


@pytest.mark.long
def test_everything_works_without_javascript(browser: Browser, site: Site, url: str) -> None:
    with browser.tab(java_script_enabled=False) as tab:
        tab.page.goto(f"{url}/runs/r-1")
        assert tab.page.locator("#dag svg").is_visible() and not tab.page.locator("#connection").is_visible()
        tab.page.locator("#kill summary").click()
        tab.page.get_by_role("button", name="Kill the run").click()
        tab.page.get_by_text("A kill was requested").wait_for()
        tab.page.goto(f"{url}/new?template=quickstart")
        tab.page.get_by_label("target", exact=True).fill("500")
        tab.page.get_by_role("button", name="Check").click()
        tab.page.get_by_text("The recipe is correct").wait_for()
        assert tab.page.get_by_label("target", exact=True).input_value() == "500"
        tab.page.get_by_role("button", name="Submit").click()
        tab.page.wait_for_url(f"{url}/runs/{examples.RUN}")
        assert [name for name, *_ in site.calls if name in ("runs.kill", "runs.submit")] == ["runs.kill", "runs.submit"]


def _with_progress(rows: int) -> Any:
    stages = examples.stages(State.RUNNING)
    return examples.run(
        stage_list=[one.model_copy(update={"rows": rows}) if one.stage == "embed" else one for one in stages]
    )


@pytest.mark.long
def test_progress_appears_and_what_the_reader_does_stays(browser: Browser, site: Site, url: str) -> None:
    with browser.tab() as tab:
        page = tab.page
        page.goto(f"{url}/runs/r-1")
        page.locator("#dag").evaluate("dag => { dag.dataset.old = 'yes'; }")
        page.locator("#recipe-text summary").click()
        page.locator("#log .log").evaluate("log => log.scrollTo(0, 40)")
        page.locator("#limits summary").click()
        page.get_by_label("Dollar limit").fill("7")
        site.answers["runs.run"] = _with_progress(20_000)
        site.stream.put("state")
        page.get_by_role("row", name="embed").get_by_text("20,000").wait_for()
        assert page.locator("#dag").get_attribute("data-old") is None
        assert page.get_by_label("Dollar limit").input_value() == "7"  # what is being filled in stays
        assert page.locator("#recipe-text").get_attribute("open") is None
        assert page.locator("#log .log").evaluate("log => log.scrollTop") == 40
        page.keyboard.press("Escape")
        site.answers["runs.run"], site.final = DONE.model_copy(update={"datasets": []}), False
        site.stream.put("end")
        page.locator("#head .pill", has_text="Done").wait_for()
        site.answers["runs.run"], site.final = DONE, True  # the workspace tells its end a little later
        page.locator("#result-section a").first.wait_for()
        assert page.locator("#announcer").inner_text() == "Done: 15 of 15 stages done."
        page.locator("[data-live]:not([data-live=''])").first.wait_for(state="detached")  # nothing more will come
        assert tab.messages == []


@pytest.mark.long
def test_the_page_says_when_the_connection_is_lost(browser: Browser, site: Site, url: str) -> None:
    with browser.tab() as tab:
        tab.page.goto(f"{url}/runs")
        tab.page.context.set_offline(True)
        said = tab.page.get_by_text("No connection to the service")
        said.wait_for()
        tab.page.context.set_offline(False)
        tab.page.locator("#connection").wait_for(state="hidden")
        assert not said.is_visible()


@pytest.mark.long
def test_a_mistake_leads_to_its_line_in_the_editor(browser: Browser, site: Site, url: str) -> None:
    mistakes = [Mistake(code="recipe", text="pool.op: not an op", stage="pool", line=12)]
    site.answers["recipes.check"] = Checked(ok=False, mistakes=mistakes, stages=[])
    with browser.tab() as tab:
        tab.page.goto(f"{url}/new?template=quickstart")
        tab.page.get_by_role("button", name="Check").click()
        tab.page.get_by_role("link", name="Line 12").click()
        chosen = tab.evaluate(
            "(e => e.value.slice(e.selectionStart, e.selectionEnd))(document.querySelector('#recipe'))"
        )
        assert chosen == "    op: acquire.folder"
        assert tab.messages == []
