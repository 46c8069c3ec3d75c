"""The page in a real browser, opened from a file: no errors, clusters open, images load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from curate.report.html import ReportHtml
from tests.html.browser import Browser, Tab, contrasts_by_theme, width_on_a_phone
from tests.report.memory_view import balanced_pool


@pytest.fixture(scope="module")
def tab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    page = ReportHtml(label="meta.category").render(balanced_pool())["index.html"]
    with browser.opened(page, tmp_path_factory.mktemp("report")) as opened:
        yield opened


@pytest.mark.long
def test_a_cluster_opens_and_its_images_load(tab: Tab) -> None:
    branch = tab.page.locator("#browse details").first
    assert branch.get_attribute("open") is None
    branch.locator("summary").first.click()
    images = branch.locator("figure img")
    assert images.count() > 5
    images.first.scroll_into_view_if_needed()
    tab.page.wait_for_function("image => image.naturalWidth === 96", arg=images.first.element_handle())


@pytest.mark.long
def test_every_image_loads_once_everything_is_open(tab: Tab) -> None:
    tab.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    tab.evaluate("document.querySelectorAll('img').forEach(one => one.loading = 'eager')")
    tab.page.wait_for_function("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
    assert tab.evaluate("document.images.length") > 60


@pytest.mark.long
def test_an_image_opens_with_its_facts_and_steps_to_the_next(tab: Tab) -> None:
    tab.page.locator("#kept button.open").first.click()
    viewer = tab.page.locator("#viewer")
    first = viewer.inner_text()
    assert "Caption" in first
    assert "a round" in first
    viewer.locator("[data-step='1']").click()
    assert viewer.inner_text() != first
    viewer.locator("form button:last-child").click()
    assert not viewer.is_visible()


@pytest.mark.long
def test_a_link_to_a_reason_opens_it(tab: Tab) -> None:
    tab.evaluate("document.querySelectorAll('#rejected details').forEach(part => part.open = false)")
    chip = tab.page.locator("#funnel a.chip").first
    chip.click()
    opened = tab.page.locator(f"{chip.get_attribute('href')}[open]")
    opened.wait_for()
    assert opened.is_visible()


@pytest.mark.long
def test_a_term_is_explained(tab: Tab) -> None:
    button = tab.page.locator("#balance .figures .what").first
    note = tab.page.locator(f"#{button.get_attribute('popovertarget')}")
    assert not note.is_visible()
    button.click()
    assert note.is_visible()
    assert "evenly" in note.inner_text()
    note.evaluate("note => note.hidePopover()")


@pytest.mark.long
def test_light_and_dark_are_both_readable(tab: Tab) -> None:
    contrasts = contrasts_by_theme(tab)
    assert len(contrasts) == 2 and min(contrasts.values()) > 7


@pytest.mark.long
def test_a_phone_scrolls_in_one_direction(tab: Tab) -> None:
    assert width_on_a_phone(tab) == 390


@pytest.mark.long
def test_the_console_is_silent(tab: Tab) -> None:
    assert tab.messages == []
